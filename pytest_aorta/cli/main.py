"""The command line of ``pytest-aorta``: its subcommands, and what a wrong request looks like."""

from __future__ import annotations

import gc
from typing import Any

import click

from pytest_aorta._version import __version__
from pytest_aorta.cli.bundle import bundle
from pytest_aorta.cli.ci_matrix import ci_matrix
from pytest_aorta.cli.clean import clean
from pytest_aorta.cli.compare import compare
from pytest_aorta.cli.convert import convert
from pytest_aorta.cli.env import env
from pytest_aorta.cli.init import init
from pytest_aorta.cli.jobs import cancel, job_ended, jobs
from pytest_aorta.cli.list import list_registered
from pytest_aorta.cli.merge import merge
from pytest_aorta.cli.minimize import minimize
from pytest_aorta.cli.report import report
from pytest_aorta.cli.run import run
from pytest_aorta.cli.scan import scan
from pytest_aorta.cli.shared import set_color
from pytest_aorta.cli.show import show, show_cluster, show_launchers, show_nodes
from pytest_aorta.cli.status import status
from pytest_aorta.cli.submit import submit
from pytest_aorta.cli.try_ import try_
from pytest_aorta.cli.why import why
from pytest_aorta.common.texts import printable
from pytest_aorta.settings import RequestError


class Refused(click.ClickException):
    """A request that cannot be carried out: one message, exit code 2."""

    exit_code = 2


class Commands(click.Group):
    """The subcommands, in the order in which they are added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        gc.set_threshold(100_000)  # what is read of 100,000 directories is kept: to look for garbage takes a fifth
        try:
            return super().invoke(ctx)
        except RequestError as error:
            raise Refused(printable(str(error))) from None


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="pytest-aorta")
def main() -> None:
    """What pytest-aorta knows, and what its results say. Trials are run by pytest: pytest --aorta-workload NAME"""


show.add_command(show_cluster)
show.add_command(show_launchers)
show.add_command(show_nodes)
main.add_command(try_)
main.add_command(init)
main.add_command(status)
main.add_command(show)
main.add_command(why)
main.add_command(scan)
main.add_command(clean)
main.add_command(run)
main.add_command(submit)
main.add_command(minimize)
main.add_command(jobs)
main.add_command(cancel)
main.add_command(job_ended)
main.add_command(convert)
main.add_command(merge)
main.add_command(ci_matrix)
main.add_command(list_registered)
main.add_command(env)
main.add_command(report)
main.add_command(compare)
main.add_command(bundle)

for _command in (*main.commands.values(), *show.commands.values()):
    _command.params.append(
        click.Option(
            ["--color"],
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            envvar=["PYTEST_AORTA_COLOR", "ROW_COLOR"],
            expose_value=False,
            callback=set_color,
            hidden=True,
        )
    )
