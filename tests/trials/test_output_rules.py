"""What lines of output say: steps, metrics, failures."""

from __future__ import annotations

import base64
import math
import zlib
from pathlib import Path

import pytest

from pytest_aorta.trials.output import OutputFindings, OutputRules, checked_metric, checked_regex
from pytest_aorta.trials.readers import FORMATS

STEP = r"step (?P<step>-?\d+)"
LOSS = r"loss (?P<loss>\S+)"


def found_in(lines: list[str], rules: OutputRules, times: list[float] | None = None) -> OutputFindings:
    found = OutputFindings(rules)
    for at, line in zip(times or range(len(lines)), lines, strict=True):
        found.take(line, at)
    return found


def test_a_duration_that_a_line_says_counts_instead_of_the_time_between_lines() -> None:
    rules = OutputRules(metric=(STEP + r" took (?P<step_ms>\S+)ms", r"took (?P<step_sec>\S+)s$"))
    found = found_in(["step 1 took 12.5ms", "step 2 took nanms", "step 3 took 0.5s"], rules)
    assert (found.step_times_ms, found.metrics) == ([12.5, 500.0], {})


def test_a_metric_that_is_not_finite_fails_where_it_must_be() -> None:
    for text in ["nan", "NaN", "inf", "-inf", "Infinity", "-nan", "nan,"]:
        lines = ["step 4 loss 0.1", f"step 5 loss {text}", "step 6 loss 0.2", f"step 7 loss {text}"]
        failed = found_in(lines, OutputRules(metric=(STEP, LOSS)))
        assert (failed.failure_count, failed.first_failure) == (2, 5)
        assert failed.reason.endswith(" at step 5")
        assert failed.failures[0]["message"].removeprefix("-") in ("NaN in loss", "inf in loss")
        assert found_in(lines, OutputRules(metric=(STEP, LOSS), allow_nonfinite=("loss",))).failures == []


def test_all_failures_are_counted_and_some_listed() -> None:
    found = found_in(["bad"] * 1000, OutputRules(fail_on=("ba.", "zzz")))
    assert found.failure_count == 1000
    assert found.failures == [{"message": "bad"}] * 20
    assert found.reason == "its output matches 'ba.': bad"


def test_what_is_no_expression_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="unterminated subpattern"):
        checked_regex("(")
    with pytest.raises(ValueError, match="named groups"):
        checked_metric(r"loss (\S+)")
    with pytest.raises(ValueError, match="without groups called"):
        checked_metric(r"(?P<returncode>\d)")


#: Moments at which two processes end each of three steps, which take 100 ms; the second is 30 ms behind.
TWO = sorted([(0.1 * step + 0.03 * rank, rank, step) for step in (1, 2, 3) for rank in (0, 1)])
#: The second is 150 ms behind: it says step 1 after the first has said step 2.
LATE = sorted([(0.1 * step + 0.15 * rank, rank, step) for step in range(1, 9) for rank in (0, 1)])


def test_a_line_that_says_its_rank_belongs_to_the_steps_of_that_process() -> None:
    for said in ["[rank{}]: step {}", "[default{}]:step {}", "[1,{}]<stdout>:step {}", "gpu {} step {}"]:
        rules = OutputRules(metric=(STEP, r"(?P<loss>[\d.]+) loss"))
        lines = [said.format(rank, step) + f" {rank}.{step} loss" for _, rank, step in LATE]
        found = found_in(lines, rules, [at for at, _, _ in LATE])
        assert found.step_times_ms == pytest.approx([100.0] * 7)
        assert (found.step, found.metrics) == (8, {"loss": 0.8})
        assert found.report()["warnings"] == []


def test_steps_of_processes_that_do_not_say_which_they_are_take_as_long_as_those_of_one() -> None:
    rules = OutputRules(metric=(STEP,))
    together = found_in([f"step {step}" for _, _, step in TWO], rules, [at for at, _, _ in TWO])
    assert together.step_times_ms == pytest.approx([100.0] * 2)
    late = found_in([f"step {step}" for _, _, step in LATE], rules, [at for at, _, _ in LATE])
    assert late.step_times_ms == pytest.approx([100.0] * 7)
    (warning,) = late.report()["warnings"]
    assert warning.startswith("step numbers go back")


def test_an_epoch_that_counts_its_steps_anew_is_no_other_process() -> None:
    found = found_in([f"step {step}" for step in (0, 1, 2, 0, 1, 2)], OutputRules(metric=(STEP,)))
    assert (found.step_times_ms, found.report()["warnings"]) == ([1000.0] * 4, [])


#: Of tqdm, transformers 5 and 4, Lightning 2 (both bars), and nanoGPT, with the steps and metrics that they say.
BARS: dict[str, tuple[str, tuple[int, int | None], dict[str, float]]] = {
    "tqdm": (" 50%|#####     | 5/10 [00:01<00:01,  4.90it/s, loss=0.5, lr=1e-3]", (5, 10), {"loss": 0.5, "lr": 0.001}),
    "hf": (
        "  0%|          | 0/4 [00:00<?, ?it/s]\n 50%|##   | 2/4 [00:02<00:02,  1.46s/it]\n"
        "{'loss': '3.047', 'grad_norm': 1.397, 'learning_rate': '3.75e-05', 'epoch': '0.5'}\n"
        "100%|#####| 1/1 [00:00<00:00, 192.77it/s]\x1b[A",
        (2, 4),
        {"loss": 3.047, "grad_norm": 1.397, "learning_rate": 3.75e-05, "epoch": 0.5},
    ),
    "lightning": (
        "Epoch 1/1  ---------- 4/4 0:00:00 \u2022 0:00:00 61.24it/s train_loss: -1.605\n"
        "Epoch 1:  75%|### | 3/4 [00:00<00:00, 61.24it/s, v_num=0, train_loss_step=0.250]\n"
        "Validation DataLoader 0:  50%|#####     | 1/2 [00:00<00:00, 90.1it/s]",
        (3, 4),
        {"train_loss": -1.605, "v_num": 0, "train_loss_step": 0.25},
    ),
    "nanogpt": (
        "step 0: train loss 10.9, val loss 10.8\niter 10: loss 4.2345, time 12.30ms, mfu -100.00%",
        (10, None),
        {"train_loss": 10.9, "val_loss": 10.8, "loss": 4.2345},
    ),
}


def test_the_bars_of_known_loops_need_no_expression() -> None:
    for name in BARS:
        lines, steps, metrics = BARS[name]
        found = found_in(lines.splitlines(), OutputRules(metrics_from=(name,)))
        assert ((found.step, found.total), found.metrics) == (steps, metrics)


def test_each_format_reads_its_example_as_itself_and_as_whatever_it_is() -> None:
    for format in FORMATS:
        found = {name: found_in([format.example], OutputRules(metrics_from=(name,))) for name in (format.name, "auto")}
        for each in found.values():
            assert (each.step is not None) == ("step" in format.expression.groupindex)
            assert each.step is None or each.step > 0
            if not format.expression.pattern.startswith(r"^\s*\d+%"):  # the bar of the Trainer has no metrics
                assert each.metrics
            assert each.failures == []
            assert all(isinstance(value, int | float) for value in each.metrics.values())
        assert found["auto"].metrics == found[format.name].metrics


def test_numbers_of_formats_are_read_as_they_are_written() -> None:
    lines = {
        "megatron": ("lm_loss", 10.0, 122),
        "torchtitan": ("tps", 7282, 14),
        "fairseq": ("ppl", 612.5, 100),
        "mmengine": ("loss", 2.6201, 50),
        "keras": ("loss", 0.2203, 1875),
        "deepspeed": ("lr", 9.65e-06, 20),
    }
    for name, (metric, value, step) in lines.items():
        found = found_in([each.example for each in FORMATS if each.name == name], OutputRules(metrics_from=(name,)))
        assert (found.metrics[metric], found.step) == (value, step)
    assert found_in([FORMATS[1].example], OutputRules(metrics_from=("megatron",))).step_times_ms == [86545.2]


def test_a_format_with_more_of_its_own_takes_the_steps_from_a_bar_before_it() -> None:
    bar = "Loading shards: 100%|####| 3/3 [00:02<00:00,  1.2it/s]"
    lines = [bar, *(f"iter {step}: loss {step}.5, time 10.0ms" for step in (1, 2)), bar]
    found = found_in(lines, OutputRules(metrics_from=("auto",)))
    assert (found.step, found.total, found.metrics, found.matched) == (2, None, {"loss": 2.5}, {"metrics-from auto": 3})


#: Written by tensorboard 2.21: steps 1 to 3 with ``loss/train`` of 0.5, 0.25 and NaN, as ``simple_value``, and with
#: ``acc`` of 0.125, 0.25 and 0.375, as a tensor, half a second apart.
EVENTS = zlib.decompress(
    base64.b85decode(
        "c-r$|fPjCKJmzw$_0FjjKX}VgiZ`h!F*8rkwJbHS#L6g0k4vW{HLp0oC@DX&C`GThG&eV~s8X-ID6=HBNG}znDn2bUCp8`-lDKc(W(BCZnr~M"
        "Ia569`IQ$8@=_tUcCCnwr#g&s^T&!OLvO*N7#QtB0?RQ<MdK<^C-^l6}xa7E)6O)sjxHuSv7_?Y`O6<J2xj4Dli<1*`5{rss#H1S0EOUTpX2N1"
        "wgPo(w<;`f8!PR40)_`hR(H13fG|Lhonwha!cA);R+&6AC%i!uUEjxf}SyWl&0sx*YZG-"
    )
)


def test_metrics_are_read_from_what_the_trial_writes_into_files(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text('{"step": 9, "loss": NaN}\n')
    sources = [f"tensorboard:{tmp_path}/logs", f"jsonl:{tmp_path}/old.jsonl", f"jsonl:{tmp_path}/new.jsonl"]
    found = OutputFindings(
        OutputRules(
            metrics_from=tuple(sources),
        )
    )
    (tmp_path / "logs" / "run").mkdir(parents=True)
    (tmp_path / "logs" / "run" / "events.out.tfevents.1").write_bytes(EVENTS + EVENTS[:30])
    (tmp_path / "new.jsonl").write_text(
        '{"step": 1, "eval": {"f1": 0.5}, "name": "a"}\n{"step": 2, "eval": {"f1": 1}}\n{"st'
    )
    found.read_files()
    assert found.metrics == {"acc": 0.375, "loss/train": pytest.approx(math.nan, nan_ok=True), "eval/f1": 1}
    assert (found.step, found.step_times_ms) == (3, [500.0, 500.0])
    assert (found.reason, found.report()["detected"]["nan"]["step"]) == ("loss/train is nan at step 3", 3)
    assert list(found.matched.values()) == [6, 0, 2]


def test_a_detector_may_fail_a_trial_by_its_name() -> None:
    found = found_in(["loss 1", "\x1b[1mloss nan\x1b[0m", "loss nan"], OutputRules(fail_on=("@nan", "@oom", "^@")))
    assert (found.failure_count, found.reason) == (2, "its output matches '@nan': loss nan")
    assert found.report()["detected"] == {"nan": {"lines": 2, "first": "loss nan"}}


def test_any_value_that_is_not_finite_is_a_failure_where_all_have_to_be_finite() -> None:
    lines = ["grad nan", "loss 1"]
    for rules in (OutputRules(fail_on_nonfinite=True), OutputRules(metric=(LOSS,), fail_on_nonfinite=True)):
        assert found_in(lines, rules).reason == "its output says nan: grad nan"
        assert found_in(lines, rules).failures == [{"message": "NaN in grad"}]
    assert found_in(lines, OutputRules(fail_on_nonfinite=True, allow_nonfinite=("lr,grad",))).failures == []


def test_what_fails_a_trial_is_named_by_more_than_a_metric_and_its_value() -> None:
    """Its signature is made of it."""
    lines = ["step 3 loss nan", "step 3 max_loss 0.5", "step 3: bad checksum"]
    found = found_in(lines, OutputRules(fail_on=("loss|checksum",)))
    assert [each["message"] for each in found.failures] == ["NaN in loss", "output matches loss|checksum", lines[2]]


def test_the_last_words_of_a_program_are_no_metrics() -> None:
    lines = ["reading golden values", "checksum mismatch: 12 != 14", "step 3 loss 0.5", "other 7", "", "=" * 60]
    assert found_in(lines, OutputRules(metric=("other (?P<other>.*)",))).last_words == lines[1]


def test_a_metric_that_is_no_number_is_to_be_doubted() -> None:
    found = found_in(["loss tensor(0.5,", "loss n/a"], OutputRules(metric=(LOSS,)))
    assert (found.metrics, found.report()["warnings"]) == ({"loss": "n/a"}, ["its metric loss is no number: 'n/a'"])
