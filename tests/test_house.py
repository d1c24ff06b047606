"""The house keeps its shape: which way imports point, and that no config field is decoration."""

import ast
import dataclasses
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

from tools import load

import lpwm

ROOT = Path(lpwm.__file__).parent

# A room imports only from rooms to the left of it, and from itself.
LEVELS = "core | kernels stats | worlds model losses optim theory | data | train plan | evaluate | interpret | "
LEVELS += "agent recipes sweep testing | report interop | api | cli | __main__"
ORDER = {room: level for level, rooms in enumerate(LEVELS.split(" | ")) for room in rooms.split()}
# A method of the lower room that is written in the upper one, imported when it is called.
CALLED_LATE = {("model/world_model.py", "train")}


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


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
        where = path.relative_to(ROOT).as_posix()
        for other in imported_rooms(path):
            seen += 1
            fine = other == room or (where, other) in CALLED_LATE or ORDER[other] < ORDER[room]
            assert fine, f"{where} imports from {other}"
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
                for pair in pairs:
                    left, right = (ast.unparse(side).rpartition(".")[2] for side in pair)
                    for held in names.values():
                        if right in held:
                            held.add(left)
    return names


def test_every_config_field_is_read_from_its_own_config():
    trees = [ast.parse(p.read_text()) for p in ROOT.rglob("*.py")]
    known = list(configs())
    assert len(known) > 10
    names, reads = holders(trees, known), attributes(trees)
    classes = [n for t in trees for n in ast.walk(t) if isinstance(n, ast.ClassDef)]
    for config in known:
        assert config.__dataclass_params__.frozen, f"{config.__name__} can be changed after it was checked"
        own = [c for c in classes if c.name == config.__name__]
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
    maker = load("docs/make_map.py")
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


class Parsed:
    """Where values parsed from JSON go, function by function, and where one is indexed by a string."""

    KEPT = ("meta", "record", "values")  # attributes that hold such values

    def __init__(self, trees):
        self.functions = [f for tree in trees for f in ast.walk(tree) if isinstance(f, ast.FunctionDef)]
        self.sources = {"loads", "parse_json", "read_json"}
        while True:  # a function that returns such a value gives one to its callers
            more = {f.name for f in self.functions if self.returns(f)} - self.sources
            if not more:
                break
            self.sources |= more

    def is_parsed(self, node, names):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            held = isinstance(node.func, ast.Attribute) and self.is_parsed(node.func.value, names)
            return name in self.sources or (held and name in ("get", "pop", "items", "values"))
        if isinstance(node, (ast.Subscript, ast.Starred)):
            return self.is_parsed(node.value, names)
        if isinstance(node, (ast.BoolOp, ast.IfExp)):
            parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
            return any(self.is_parsed(part, names) for part in parts)
        if isinstance(node, ast.Attribute):
            return node.attr in self.KEPT and not isinstance(node.value, ast.Call)
        return isinstance(node, ast.Name) and node.id in names

    def names(self, function):
        names = set()
        for _ in range(3):
            for node in ast.walk(function):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                value = getattr(node, "iter", None) or getattr(node, "value", None)
                bound = isinstance(node, (ast.Assign, ast.AnnAssign, ast.For, ast.comprehension)) and value is not None
                if bound and self.is_parsed(value, names):
                    stored = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
                    names |= {n.id for n in stored if isinstance(n.ctx, ast.Store)}
        return names

    def returns(self, function):
        names = self.names(function)
        returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
        return function.name != "from_json" and any(self.is_parsed(value, names) for value in returned)

    def indexed(self):
        for function in self.functions:
            if function.name in ("from_json", "upgrade"):
                continue
            names = self.names(function)
            for node in ast.walk(function):
                by_name = isinstance(node, ast.Subscript) and isinstance(getattr(node.slice, "value", None), str)
                if by_name and isinstance(node.ctx, ast.Load) and self.is_parsed(node.value, names):
                    yield f"{function.name}: {ast.unparse(node)}"


def test_no_string_indexes_parsed_json_outside_from_json():
    own = {"serve"}  # a message between two processes of ours, no file
    trees = [ast.parse(p.read_text()) for p in ROOT.rglob("*.py")]
    assert [line for line in Parsed(trees).indexed() if line.partition(":")[0] not in own] == []
    bad = """
def read(path):
    return json.loads(path)
def use(path):
    for entry in read(path).get("rows"):
        return entry["name"], model.meta["world"]
def from_json(path):
    return read(path)["name"]
"""
    assert list(Parsed([ast.parse(bad)]).indexed()) == ["use: entry['name']", "use: model.meta['world']"]


def test_results_name_no_folder_of_a_machine():
    repository = Path(__file__).parents[1]
    files = [*(repository / "results").glob("*.json"), *(repository / "bench" / "results").glob("*.json")]
    assert len(files) > 20
    for path in files:
        assert not re.search(r'"/(tmp|home|root|work|mnt|Users)/', path.read_text()), path.name
