"""The house keeps its shape: which way imports point, and that no config field is decoration."""

import ast
import dataclasses
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import lpwm

ROOT = Path(lpwm.__file__).parent

# A room imports only from rooms with a smaller number, and from itself.
ORDER = {
    "core": 0,
    "kernels": 1,
    "stats": 1,
    "worlds": 2,
    "model": 2,
    "losses": 2,
    "optim": 2,
    "theory": 2,
    "data": 3,
    "train": 4,
    "plan": 4,
    "evaluate": 5,
    "interpret": 6,
    "agent": 7,
    "recipes": 7,
    "sweep": 7,
    "testing": 7,
    "report": 8,
    "interop": 8,
    "api": 9,
    "cli": 10,
    "__main__": 11,
}
# A method of the lower room that is written in the upper one, imported when it is called.
CALLED_LATE = {("model/world_model.py", "train")}


def room_of(path):
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lpwm":
            parts = node.module.split(".")
            names = [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name.split(".")[1] for a in node.names if a.name.startswith("lpwm.")]
        yield from (n for n in names if n != "__version__")


def test_imports_point_to_the_left():
    seen = 0
    for path in ROOT.rglob("*.py"):
        room = room_of(path)
        if room == "__init__":
            continue
        assert room in ORDER, f"{path} is in no known room"
        for other in imported_rooms(path):
            seen += 1
            where = path.relative_to(ROOT).as_posix()
            if other == room or (where, other) in CALLED_LATE:
                continue
            assert ORDER[other] < ORDER[room], f"{path.relative_to(ROOT)} imports from {other}"
    assert seen > 100


def configs():
    for module in pkgutil.walk_packages([str(ROOT)], "lpwm."):
        if module.name == "lpwm.__main__":
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name != "triton":
                raise
            continue
        for name, value in vars(loaded).items():
            if name.endswith("Config") and dataclasses.is_dataclass(value) and value.__module__ == module.name:
                yield value


def holders(trees, configs):
    """Config class -> names that hold one: annotated names, fields of other configs, what is assigned from those."""
    names = {config.__name__: set() for config in configs}
    for node in (n for tree in trees for n in ast.walk(tree)):
        if isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            held = node.arg if isinstance(node, ast.arg) else ast.unparse(node.target).rpartition(".")[2]
            for word in re.findall(r"\w+", ast.unparse(node.annotation)):
                if word in names:
                    names[word].add(held)
    for _ in range(2):  # config -> self.config -> c
        for node in (n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Assign)):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=False))
                for left, right in pairs:
                    for held in names.values():
                        if ast.unparse(right).rpartition(".")[2] in held:
                            held.add(ast.unparse(left).rpartition(".")[2])
    return names


def test_every_config_field_is_read_from_its_own_config():
    trees = [ast.parse(p.read_text()) for p in ROOT.rglob("*.py")]
    found = list(configs())
    assert len(found) > 10
    names, reads = holders(trees, found), attributes(trees)
    for config in found:
        assert config.__dataclass_params__.frozen, f"{config.__name__} can be changed after it was checked"
        own = [n for t in trees for n in ast.walk(t) if isinstance(n, ast.ClassDef) and n.name == config.__name__]
        methods = [m for c in own for m in c.body if isinstance(m, ast.FunctionDef) and m.name != "__post_init__"]
        inside = attributes(methods)
        for f in dataclasses.fields(config):
            assert ("self", f.name) in inside or any((held, f.name) in reads for held in names[config.__name__]), (
                f"{config.__name__}.{f.name} is never read"
            )


def attributes(trees):
    """(name of the object, attribute) of every access."""
    nodes = (n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    return {(ast.unparse(n.value).rpartition(".")[2], n.attr) for n in nodes}


def test_a_field_that_nobody_reads_would_be_seen():
    """A name read from another object does not count."""
    config = dataclasses.make_dataclass("OwnConfig", [("size", int)], frozen=True)
    tree = ast.parse("def f(own: OwnConfig, other):\n    return other.size")
    assert holders([tree], [config]) == {"OwnConfig": {"own"}}


def test_the_map_of_rooms_is_drawn_from_the_imports():
    spec = importlib.util.spec_from_file_location("make_map", ROOT.parent / "docs" / "make_map.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    text = maker.PAGE.read_text()
    assert maker.page(text) == text, "run python docs/make_map.py"
    described = re.findall(r"^\| (`.*?) \| [^|]+ \|$", text.partition("## Who imports whom")[0], re.M)
    assert set(re.findall(r"`(\w+)`", " ".join(described))) == set(maker.rooms())


def test_no_printing_and_no_pickles_in_the_library():
    for path in ROOT.rglob("*.py"):
        if room_of(path) in ("cli", "__main__", "testing"):  # a check that a world survives pickling pickles it itself
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name == "torch.load" and any(ast.unparse(k) == "weights_only=True" for k in node.keywords):
                    continue  # torch's own restricted reader
                assert name != "print", f"{path} prints"
                assert name not in ("torch.load", "pickle.load", "pickle.loads", "eval", "exec"), f"{path}: {name}"


def test_results_name_no_folder_of_a_machine():
    repository = Path(__file__).parents[1]
    files = [*(repository / "results").glob("*.json"), *(repository / "bench" / "results").glob("*.json")]
    assert len(files) > 20
    for path in files:
        assert not re.search(r'"/(tmp|home|root|work|mnt|Users)/', path.read_text()), path.name
