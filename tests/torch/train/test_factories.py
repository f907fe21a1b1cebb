"""What `package.module:callable` finds, and what is said when it does not."""

import sys

import pytest

from pilotkit.errors import ConfigError
from pilotkit.train.factories import bound, resolve

HEAD = "1 problem in the configuration; nothing was started.\n1. model.factory="


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module of the user's in a folder on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    yield write
    for name in [name for name in sys.modules if name.startswith("users_")]:
        del sys.modules[name]


def test_finds_functions_and_nested_names(user_module):
    user_module("users_good", "def build(): return 1\nclass Model:\n    @staticmethod\n    def tiny(): return 2\n")
    assert resolve("users_good:build", key="model.factory")() == 1
    assert resolve("users_good:Model.tiny", key="model.factory")() == 2


@pytest.mark.parametrize("path", ["users_good", "users_good.build", ":build", "users_good:", "a:b:c", ""])
def test_another_form_is_refused(path):
    with pytest.raises(ConfigError) as caught:
        resolve(path, key="model.factory")
    assert str(caught.value) == (
        f"{HEAD}{path}\n    allowed: package.module:callable\n"
        "    to mend: write the module, a colon, and the name of the callable in it"
    )


def test_missing_module_is_named():
    with pytest.raises(ConfigError) as caught:
        resolve("users_absent.models:build", key="model.factory")
    assert str(caught.value) == (
        f"{HEAD}users_absent.models:build\n    allowed: a module that can be imported\n"
        "    to mend: there is no module users_absent; "
        "start pilotkit in the folder that holds it, or install its package"
    )


def test_import_error_inside_the_users_module_keeps_its_text(user_module):
    user_module("users_broken", "import users_dependency\n")
    with pytest.raises(ConfigError) as caught:
        resolve("users_broken:build", key="model.factory")
    assert str(caught.value) == (
        f"{HEAD}users_broken:build\n    allowed: a module whose own imports succeed\n"
        "    to mend: importing users_broken failed: No module named 'users_dependency'"
    )


def test_missing_attribute_lists_what_there_is(user_module):
    user_module("users_other", "def make(): pass\ndef build_all(): pass\n_hidden = make\nsize = 3\n")
    with pytest.raises(ConfigError) as caught:
        resolve("users_other:build", key="model.factory")
    assert str(caught.value) == (
        f"{HEAD}users_other:build\n    allowed: a callable of users_other: build_all, make\n"
        "    to mend: users_other has no build; name one of these, or add it"
    )


def test_value_that_is_no_callable_is_refused(user_module):
    user_module("users_value", "size = 3\n")
    with pytest.raises(ConfigError, match=r"to mend: size is a int; name a function or class$"):
        resolve("users_value:size", key="model.factory")


def test_other_errors_of_the_users_module_are_left_as_they_are(user_module):
    user_module("users_crash", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        resolve("users_crash:build", key="model.factory")


OWN = {"split": "train", "seq_len": 8, "seed": 0}
ROWS = "def build(split, seq_len, seed, width, depth=1): return split, seq_len, seed, width, depth\n"


def test_arguments_of_the_configuration_go_before_our_own(user_module):
    user_module("users_rows", ROWS)
    made = bound("users_rows:build", section="data", kwargs={"width": 3, "seq_len": 16}, **OWN)
    assert made() == ("train", 16, 0, 3, 1)
    user_module("users_any", "def build(split, **anything): return split, anything\n")
    made = bound("users_any:build", section="data", kwargs={"x": 1}, **OWN)
    assert made() == ("train", {"seq_len": 8, "seed": 0, "x": 1})


def test_every_argument_that_does_not_fit_is_named_at_once(user_module):
    """Not a TypeError of the worker: what is given and not taken, and what is needed and not given."""
    user_module("users_misfit", ROWS)
    with pytest.raises(ConfigError) as caught:
        bound("users_misfit:build", section="data", kwargs={"widht": 3, "deep": 2}, **OWN)
    found = {problem.key: problem for problem in caught.value.problems}
    assert list(found) == ["data.kwargs.widht", "data.kwargs.deep", "data.kwargs.width"]
    assert found["data.kwargs.widht"].allowed == "an argument of users_misfit:build: width, depth"
    assert found["data.kwargs.width"].fix.startswith("add data.kwargs.width=...")


def test_a_factory_that_lacks_what_we_give_is_told_what_that_is(user_module):
    user_module("users_alone", "def build(split): return split\n")
    with pytest.raises(ConfigError) as caught:
        bound("users_alone:build", section="data", kwargs={}, **OWN)
    (problem,) = caught.value.problems
    assert (problem.key, problem.allowed) == ("data.factory", "a callable that takes split, seq_len, seed")
    assert "add seq_len, seed to its arguments" in problem.fix
