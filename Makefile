.PHONY: check test slow long docs release compat

check:  ## lint, types, import contracts
	ruff check . && ruff format --check . && mypy && lint-imports

test:  ## the fast suite
	pytest -n 3 tests

slow:  ## long variants: storms, whole fault tables, several nodes
	pytest -n 2 --dist worksteal tests -m "slow and not long"

release:  ## what an index would take: wheel and sdist, built, looked into, and tried
	pytest tests/test_release.py -m ""

compat:  ## other versions of Python, pytest and torch: docs/reference/compatibility.md
	uvx nox -s compat

long:  ## minutes each: many ranks under load, lost nodes, kills
	pytest tests -m long

docs:  ## the site in site/, from a fresh clone as well
	pip install --quiet -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict
