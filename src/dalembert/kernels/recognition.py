"""Functions are recognised by what they compute, not by which object they are.

A system that the same code builds again (lambdas inside `make(p)`) is the same program. `fingerprint` writes a function
down as text that is the same in every process: its code, constants, defaults, what it closes over, and the globals that
it reads. `recognise` gives one object for all functions with the same text. Numbers that a function holds, traced ones
above all, can be taken out of it as inputs: then other values are the same program too.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import dis
import functools
import hashlib
import inspect
import sys
import types
import warnings
from collections import ChainMap, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import jax
import jax.extend.core
import numpy as np

PACKAGE = __name__.partition(".")[0]
VERSIONED_PACKAGES = (PACKAGE, "jax", "numpy", "builtins")
"""Packages whose versions are part of every key, beside those of Python itself."""
MAX_RECOGNISED = 1024
"""Functions that are remembered; the one used least recently goes first."""
_PLAIN = (type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, slice, range, np.dtype)
_ARRAYS = (np.ndarray, np.generic, jax.Array)
_DERIVED = (bool, int, float, complex, str, bytes, np.ndarray, np.generic, dict, tuple, list, Enum)
"""What is written by its contents, and by its class where that is a user's."""


class Unfingerprintable(LookupError):
    """Something that has no name outside this process."""


def fingerprint(it: Any) -> list[str]:
    """Everything that a traced function can depend on, as text: the same for the same thing in every process."""
    text: list[str] = []
    _write(it, (), text)
    return text


def _write(it: Any, within: tuple[Any, ...], text: list[str]) -> None:
    """Add the text of a thing; `within` are the functions and modules that are being written already."""
    kind = type(it)
    text.append(f"{kind.__module__}.{kind.__qualname__}")
    if kind in _PLAIN:
        text.append(repr(it))
        return
    if isinstance(it, _DERIVED) and kind not in within and not _in_library(kind.__module__):
        _write_class(kind, (*within, kind), text)  # its functions read what the object is
    if isinstance(it, _PLAIN):
        text.append(repr(it))
        if own := getattr(it, "__dict__", None):
            _write(own, within, text)
    elif kind is tuple or kind is list:  # as below, sooner
        _write_all(within, *it, text=text)
    elif kind is jax.tree_util.PyTreeDef:
        _write_all(within, it.node_data(), it.children(), text=text)
    elif isinstance(it, jax.core.Tracer):
        raise Unfingerprintable("a number that JAX traces")
    elif isinstance(it, _ARRAYS):
        data = np.asarray(it)
        text.append(f"{data.dtype} {data.shape} {hashlib.sha256(data.tobytes()).hexdigest()}")
        if data.dtype == object:  # those were places in memory
            _write(data.tolist(), within, text)
        if isinstance(it, np.ndarray) and kind is not np.ndarray:  # a unit, or a mask
            _write(vars(it), within, text)
    elif isinstance(it, dict):
        rest = getattr(it, "default_factory", None) if isinstance(it, defaultdict) else None
        _write_all(within, *it.items(), *vars(it).items() if hasattr(it, "__dict__") else (), rest, text=text)
    elif any(it is other for other in within):
        text.append(str([it is other for other in within].index(True)))
    elif isinstance(it, types.ModuleType):
        _write_module(it, within, text)
    elif isinstance(it, Enum):
        _write_all(within, it.name, it.value, text=text)
    elif _has_name(it):
        text.append(f"{it.__module__}.{it.__qualname__}")
    elif isinstance(it, Template):
        it.renew()
        text.append(it.digest)
    elif isinstance(it, types.FunctionType):
        _require_plain(it)
        within = (*within, it)
        cells = [_contents(cell) for cell in it.__closure__ or ()]
        known = [] if (it.__module__ or "").partition(".")[0] == PACKAGE else _globals_read(it)
        defaults = it.__defaults__, it.__kwdefaults__, vars(it)
        _write_all(within, it.__module__, it.__code__, *defaults, cells, known, text=text)
    elif isinstance(it, types.CodeType):
        text.append(_text_of_code(it))
    elif isinstance(it, types.MethodDescriptorType | types.WrapperDescriptorType):  # dict.get
        _write_all(within, it.__objclass__, it.__name__, text=text)
    elif isinstance(it, types.MethodType):
        _write_all(within, it.__self__, it.__func__, text=text)
    elif isinstance(it, functools.partial):
        _write_all(within, it.func, it.args, it.keywords, text=text)
    elif isinstance(it, frozenset | set):
        texts: list[list[str]] = [[] for _ in it]
        for each, own in zip(it, texts, strict=True):
            _write(each, within, own)
        text += sum(sorted(texts), [str(len(texts))])
    elif dataclasses.is_dataclass(it) and not isinstance(it, type) and _has_name(type(it)):
        _write_all(within, *(getattr(it, field.name) for field in dataclasses.fields(it)), text=text)
    elif isinstance(it, tuple | list) and (_has_name(type(it)) or hasattr(it, "_fields")):
        _write_all(within, *it, text=text)
    elif isinstance(it, type):
        _write_class(it, (*within, it), text)
    elif (
        kind.__module__ != "builtins" and not _in_library(kind.__module__) and (hasattr(it, "__dict__") or _slots(kind))
    ):
        slotted = [getattr(it, name, None) for name in _slots(kind)]
        _write_all((*within, it), kind, getattr(it, "__dict__", {}), slotted, text=text)
    elif not jax.tree_util.all_leaves([it]):  # a system, say
        _write_all((*within, it), *jax.tree.flatten(it), text=text)
    elif isinstance(it, jax.custom_jvp | jax.custom_vjp):  # rules may close over more than the function does
        rules = (it.jvp,) if isinstance(it, jax.custom_jvp) else (it.fwd, it.bwd)
        _write_all((*within, it), it.fun, *rules, text=text)
    elif callable(getattr(it, "__wrapped__", None)):  # jax.jit and the like
        _write(it.__wrapped__, within, text)
    else:
        raise Unfingerprintable(f"{it!r} has no name outside this process")


def _write_all(within: tuple[Any, ...], *things: Any, text: list[str]) -> None:
    text.append(str(len(things)))
    for thing in things:
        _write(thing, within, text)


def _never_changes(it: Any) -> bool:
    """Whether this object has its text now and later: no function, array or object of a user."""
    if isinstance(it, jax.tree_util.PyTreeDef):
        return _never_changes(it.node_data()) and all(map(_never_changes, it.children()))
    if type(it) in (tuple, list, dict) or (isinstance(it, tuple) and _has_name(type(it))):
        return all(map(_never_changes, it.items() if isinstance(it, dict) else it))
    if dataclasses.is_dataclass(it) and not isinstance(it, type | Template):
        return _has_name(type(it)) and all(_never_changes(getattr(it, field.name)) for field in dataclasses.fields(it))
    return type(it) in _PLAIN or isinstance(it, Template) or _has_name(it)


def _text_of_code(code: types.CodeType) -> str:
    """The text of code, which nobody can change: it is written once, and known by the object."""
    if (known := _codes.get(id(code))) is not None:
        return known[1]
    # Not its line: it only changes where an error is said to be, and a line above would compile everything again.
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    parts: list[str] = []
    _write_all((), code.co_qualname, code.co_code, *names, *counts, code.co_consts, text=parts)
    if not ASKING.isdisjoint((*code.co_names, *(each.opname for each in dis.get_instructions(code)))):
        parts.append(ASKS)
    if len(_codes) >= MAX_RECOGNISED:
        _codes.clear()
    _codes[id(code)] = code, "\0".join(parts)
    return _codes[id(code)][1]


ASKING = frozenset((
    "isinstance", "issubclass", "type", "__class__", "hasattr", "getattr", "callable", "isscalar", "iscomplexobj",
    "str", "repr", "format", "id", "hash", "round", "MATCH_CLASS", "PUSH_EXC_INFO", "FORMAT_VALUE", "FORMAT_SIMPLE",
    "FORMAT_WITH_SPEC", "CONVERT_VALUE",
))  # fmt: skip
"""Names and instructions by which code may tell a number that JAX traces from a known one."""
ASKS = "asks what a number is"


_codes: dict[int, tuple[types.CodeType, str]] = {}


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError as error:
        raise Unfingerprintable("a variable that has no value yet") from error


@functools.lru_cache(MAX_RECOGNISED)
def _names_of_code(code: types.CodeType) -> tuple[list[str], list[str], list[str]]:
    """(the names that code has, those of globals among them, those of modules that it imports when it is called).

    Names in functions inside it count too.
    """
    found = [_names_of_code(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    steps = list(dis.get_instructions(code))
    names = {*code.co_names}.union(*(each for each, _, _ in found))
    globals_ = {each.argval for each in steps if each.opname in GLOBAL_READS}.union(*(each for _, each, _ in found))
    imports = [each.argval for each in steps if each.opname == "IMPORT_NAME"]
    return sorted(names), sorted(globals_), sum([each for _, _, each in found], imports)


GLOBAL_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
"""Instructions that read a global. An attribute may have the name of one, which a script changes in a loop."""


def _globals_read(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The globals whose names the code of a function has, and what modules of the user's call by these names.

    The modules may be globals, or in a variable around the function, or what it imports when it is called.
    """
    (names, own, imports), space = _names_of_code(function.__code__), function.__globals__
    modules: list[tuple[str, Any]] = []
    for name in imports:
        with contextlib.suppress(ImportError):
            modules.append((name, sys.modules.get(f"{space.get('__package__')}.{name}") or import_module(name)))
    visible = ChainMap(space, vars(builtins))
    found = [(name, visible[name]) for name in own if name in visible]
    modules += [*zip(function.__code__.co_freevars, map(_contents, function.__closure__ or ()), strict=True), *found]
    modules = [(name, it) for name, it in modules if isinstance(it, types.ModuleType) and not _in_library(it.__name__)]
    for place, module in modules:  # which grows
        new = [(f"{place}.{name}", vars(module)[name]) for name in names if name in vars(module)]
        found += new
        inner = [each for each in new if isinstance(each[1], types.ModuleType) and not _in_library(each[1].__name__)]
        modules += [each for each in inner if each[1] not in [it for _, it in modules]]
    return found


def _require_plain(function: types.FunctionType) -> None:
    """Refuse a function of the user's that changes variables around it, or reads more than its names say."""
    if _in_library(function.__module__):
        return
    if changed := _changes(function.__code__):
        raise Unfingerprintable(f"{function.__qualname__} changes the variable {changed} around it")
    for name in ("eval", "exec", "globals"):
        if name in function.__code__.co_names and name not in function.__globals__:
            raise Unfingerprintable(f"{function.__qualname__} calls {name}")


@functools.lru_cache(MAX_RECOGNISED)
def _changes(code: types.CodeType) -> str | None:
    """A variable around a function, or a global, that its code or the functions inside it change; None without."""
    inner = [
        _changes(each) for each in code.co_consts if isinstance(each, types.CodeType) and each.co_flags & NEW_SCOPE
    ]
    own = [each.argval for each in dis.get_instructions(code) if each.opname in STORES]
    return next((name for name in (*own, *inner) if name and name not in code.co_cellvars), None)


NEW_SCOPE = 2
"""The flag of code whose variables are its own: a function, and no body of a class."""
STORES = ("STORE_DEREF", "DELETE_DEREF", "STORE_GLOBAL", "DELETE_GLOBAL")
"""Instructions that change variables of the functions around, or globals."""


def _other_globals(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The globals that a function reads beside `_global_values`."""
    own = _global_values(function)
    return [each for each in _globals_read(function) if each[0] not in own]


def _global_values(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a function of the user's reads and that may hold numbers: no modules, classes or library."""
    names, space = _names_of_code(function.__code__)[1], function.__globals__
    if _in_library(function.__module__) or not REFLECTIVE.isdisjoint(names):
        return {}
    found = {name: space[name] for name in names if name in space}
    return {name: it for name, it in found.items() if not (isinstance(it, types.ModuleType | type) or _has_name(it))}


REFLECTIVE = frozenset(("locals", "vars"))
"""Functions by which code may read more than its names say."""


def _write_class(it: type, within: tuple[Any, ...], text: list[str]) -> None:
    """A class of the user's own: its bases, its functions and its values."""
    if _in_library(it.__module__):
        raise Unfingerprintable(f"the class {it.__qualname__} is not found by its name")
    own = {name: value for name, value in vars(it).items() if name not in UNREAD_ENTRIES}
    own = {name: _function_in(value) for name, value in own.items()}
    if issubclass(it, tuple) and "_fields" in own:  # the rest was made by NamedTuple
        own = {name: value for name, value in own.items() if name not in vars(_Named) or name == "_fields"}
        own = {name: value for name, value in own.items() if name not in own["_fields"]}
    if issubclass(it, Enum):  # the rest was made by Enum
        own = {name: value for name, value in own.items() if isinstance(value, types.FunctionType)}
        own |= {name: (member.value,) for name, member in it.__members__.items()}
    kept = {name: value for name, value in own.items() if not isinstance(value, types.MemberDescriptorType)}
    text.append(it.__qualname__)
    rest = {k: v for k, v in kept.items() if not _is_made_by_dataclass(k, v)}
    _write_all(within, *it.__bases__, type(it), rest, text=text)


def _function_in(entry: Any) -> Any:
    """The function of a method or a property in a class; both functions of one that can be set."""
    if isinstance(entry, property) and entry.fset is not None:
        return entry.fget, entry.fset
    return getattr(entry, "__func__", getattr(entry, "fget", entry))


class _Named(NamedTuple):
    """What every NamedTuple has."""


UNREAD_ENTRIES = (
    "__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__static_attributes__", "__match_args__",
    "__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__"
)  # fmt: skip
"""Entries of a class that no function of it reads."""


def _is_made_by_dataclass(name: str, value: Any) -> bool:
    """Whether `dataclass` made this entry of a class, which follows from its fields."""
    if isinstance(value, types.FunctionType) and name in (
        "__init__",
        "__repr__",
        "__eq__",
        "__setattr__",
        "__delattr__",
    ):
        made: types.FunctionType = inspect.unwrap(value)
        return made.__code__.co_filename == "<string>"
    return name.startswith("__dataclass") or name in ("__firstlineno__", "__hash__", "__slots__", "_field_defaults")


def _write_module(it: types.ModuleType, within: tuple[Any, ...], text: list[str]) -> None:
    """A module: by its name and version in a library, else by its source and the values in it."""
    text.append(it.__name__)
    if _in_library(it.__name__):
        text.append(str(getattr(it, "__version__", "")))
        return
    try:
        source = Path(str(it.__file__)).read_bytes()
    except OSError as error:
        raise Unfingerprintable(f"the module {it.__name__} has no source") from error
    text.append(hashlib.sha256(source).hexdigest())
    simple = (bool, int, float, complex, str, *_ARRAYS, types.ModuleType)
    values = {
        name: value for name, value in vars(it).items() if isinstance(value, simple) and not name.startswith("__")
    }
    _write_all((*within, it), values, text=text)


@functools.cache
def _in_library(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed distribution."""
    top = (module or "").partition(".")[0]
    if top in VERSIONED_PACKAGES or top in sys.stdlib_module_names:
        return top != "__main__"
    place = str(getattr(sys.modules.get(top), "__file__", "") or "")
    return "site-packages" in place or "dist-packages" in place


def _has_name(it: Any) -> bool:
    """Whether a class or function is what its module calls by its name, in a package whose version is in the key."""
    try:
        module, name = getattr(it, "__module__", None), getattr(it, "__qualname__", None)
    except Exception:  # a user's __getattr__ may raise what it likes
        return False
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    top = module.partition(".")[0]
    if top not in VERSIONED_PACKAGES and (top not in sys.stdlib_module_names or top == "__main__"):
        return False
    if it is type(None):
        return True
    with contextlib.suppress(AttributeError, KeyError):
        return attrgetter(name)(sys.modules[module]) is it
    return False


# One object for all functions that compute the same.


@dataclasses.dataclass(eq=False)
class Template:
    """A function without the numbers that it holds: one object for all functions of the same text."""

    digest: str
    function: Callable[..., Any]
    part: HeldPart | None  # of the function; None where no number was taken out
    inputs: int  # how many were
    asks: bool  # whether its code may tell a traced number from a known one
    taken: tuple[str, frozenset[int]]  # which numbers were taken out
    sample: list[Any] | None  # numbers in their places; None where some were traced
    given: Callable[..., Any]  # the function that had this text first
    latest: Callable[..., Any]  # and last
    at: Any = None  # the types of arguments with which it can be traced
    program: list[str] | None = None  # of it with these; None where that is not known

    def renew(self) -> None:
        """Look whether this is what it was, before a program of it is kept; else the latest function stands in.

        Objects, arrays and globals that a function reads may have changed since, and it would be traced as another one.
        """
        if self.sample is None or self in _renewing:  # an object may hold the system that its functions describe
            return
        _renewing.append(self)
        try:
            if self._is_still(self.given if self.part is None else self.fill(self.sample)):
                return
            if not self._is_still(self.latest):
                name = getattr(self.latest, "__qualname__", type(self.latest).__qualname__)
                text = f"what {name} reads (a global, an attribute, an array) changed: build the system again"
                raise ValueError(text)
            self.function = self.given = self.latest
            node = None if self.part is None else _dissect(self.latest, *self.taken)[2]
            self.part = node if isinstance(node, HeldPart) else None
        finally:
            _renewing.remove(self)

    def _is_still(self, function: Any) -> bool:
        """Whether a function has the text, or computes the same: its object may have got an attribute, say."""
        with contextlib.suppress(Unfingerprintable, RecursionError):
            if _dissect(function, *self.taken)[0] == self.digest:
                return True
        return self.program is not None and self.program == _trace_program(function, self.at)

    def fill(self, numbers: Sequence[Any]) -> Callable[..., Any]:
        """The function that holds these numbers."""
        made: Callable[..., Any] = self.function if self.part is None else self.part.build(iter(numbers), ())
        return made


_renewing: list[Template] = []


class HeldPart(NamedTuple):
    """A function, a method, a partial, or an object of a user's class, some of whose contents are taken out."""

    it: Any  # as it was met first
    structure: Any  # of its contents
    nodes: tuple[Any, ...]  # of its leaves: _INPUT, an `_Outer`, a `HeldPart`, or what stays
    inputs: int
    reach: int  # the outermost part that it refers to

    def build(self, numbers: Iterator[Any], outer: tuple[Any, ...]) -> Any:
        """The same with the next of the numbers. What refers to parts around it refers to the new ones."""
        blank = _make_blank(self.it)
        around = (*outer, blank)

        def value(node: Any) -> Any:
            if node is _INPUT:
                return next(numbers)
            if isinstance(node, HeldPart):
                return node.build(numbers, around)
            return around[node.reach] if isinstance(node, _Outer) else node

        return _complete(self.it, blank, jax.tree.unflatten(self.structure, list(map(value, self.nodes))))


class _Outer(NamedTuple):
    """Stands for a part around this one: a function that calls itself, an object whose attributes know it."""

    reach: int
    inputs: int = 0


class _Input:
    """Stands where a number was taken out."""


_INPUT = _Input()


def _open(it: Any) -> list[Any] | None:
    """The contents of what can be put together again with others; None for everything else."""
    kind = type(it)
    if kind is types.FunctionType:
        _require_plain(it)
        space = _global_values(it)
        if not (it.__closure__ or it.__defaults__ or it.__kwdefaults__ or space):
            return None
        return [list(map(_contents, it.__closure__ or ())), it.__defaults__, it.__kwdefaults__, space]
    if kind is functools.partial:
        return [it.func, it.args, it.keywords]
    if kind is types.MethodType:
        return [it.__self__, it.__func__]
    if kind is dict:
        return [OrderedDict(it)]
    if kind is _JITTED:
        return [it.__wrapped__]
    if kind.__module__ == "builtins" or isinstance(it, type | types.ModuleType | Enum) or _in_library(kind.__module__):
        return None
    with contextlib.suppress(TypeError):  # a class derived from dict, say, is no mere set of attributes
        object.__new__(kind)
        slots = {name: getattr(it, name) for name in _slots(kind) if hasattr(it, name)}
        return [{**vars(it)} if hasattr(it, "__dict__") else {}, slots]
    return None


_JITTED: Any = type(jax.jit(lambda: None))


def _slots(kind: type) -> list[str]:
    """The attributes of a class that are no entries of a dictionary."""
    found = [(name, slot) for each in kind.__mro__ for name, slot in vars(each).items()]
    return [name for name, slot in found if type(slot) is types.MemberDescriptorType]


def _make_blank(it: Any) -> Any:
    """The new object without its contents, which may refer to it; None where it cannot be made without them."""
    if isinstance(it, types.FunctionType):
        names = (*MODULE_NAMES, *_names_of_code(it.__code__)[1])
        space = {name: it.__globals__[name] for name in names if name in it.__globals__}
        return _with_cells(it, tuple(types.CellType() for _ in it.__closure__ or ()), space)
    if type(it) is dict:
        return {}
    return None if isinstance(it, _WITHOUT_BLANK) else object.__new__(type(it))


MODULE_NAMES = ("__builtins__", "__name__", "__package__", "__spec__", "__file__")
"""Globals by which code imports and finds what belongs to Python."""
_WITHOUT_BLANK = (functools.partial, types.MethodType, _JITTED)


def _complete(it: Any, blank: Any, contents: list[Any]) -> Any:
    """What `_open` opened, with other contents. A jitted function becomes plain: in a traced one `jit` does nothing."""
    if isinstance(it, functools.partial):
        function, args, keywords = contents
        return functools.partial(function, *args, **keywords)
    if isinstance(it, types.MethodType):
        return types.MethodType(contents[1], contents[0])
    if isinstance(it, _JITTED):
        return contents[0]
    if isinstance(it, types.FunctionType):
        cells, blank.__defaults__, blank.__kwdefaults__, space = contents
        blank.__globals__.update(space)
        for cell, value in zip(blank.__closure__ or (), cells, strict=True):
            cell.cell_contents = value
        return blank
    if type(it) is dict:
        blank.update(contents[0])
        return blank
    for name, value in contents[1].items():
        object.__setattr__(blank, name, value)
    if contents[0]:
        blank.__dict__.update(contents[0])
    return blank


def _attributes(function: types.FunctionType) -> dict[str, Any]:
    """Those of a function, without what a decorator that holds the decorated function calls it."""
    own = {**vars(function)}
    if "__wrapped__" in own and any(cell.cell_contents is own["__wrapped__"] for cell in function.__closure__ or ()):
        del own["__wrapped__"]
    return own


def _with_cells(
    function: types.FunctionType, cells: tuple[types.CellType, ...] | None, space: dict[str, Any] | None = None
) -> types.FunctionType:
    """The same function with other variables around it and other globals, or a copy that JAX has not traced."""
    space = function.__globals__ if space is None else space
    made = types.FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells or None)
    made.__kwdefaults__, made.__qualname__, made.__module__ = (
        function.__kwdefaults__, function.__qualname__, function.__module__
    )  # fmt: skip
    made.__dict__.update(_attributes(function))
    return made


def _flatten(contents: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(contents, is_leaf=_is_leaf)


def _is_leaf(node: Any) -> bool:
    """None is a leaf, and so is a dictionary that is not in the order of its keys, in which JAX would put it."""
    if type(node) is not dict:
        return node is None or type(node) is defaultdict
    keys = list(node)
    return len(set(map(type, keys))) > 1 or (len(keys) > 1 and not (type(keys[0]) is str and keys == sorted(keys)))


TAKES = ("traced", "arrays", "numbers", "all")
"""What is taken out of a function: traced numbers; real arrays too; Python's floats too; also those that are 0 or 1."""
MAX_FLOATS = 64
"""Python's floats that are taken out of a function; one that holds more has a table, which is no set of parameters."""


MAX_PARTS = 256
"""Functions and objects that are taken apart at once; numbers in the midst of more stay where they are."""


class _TooLarge(Exception):
    """A function of too many parts."""


class _Dissection:
    """How a function is taken apart: the numbers that are taken out of it, and the text of the rest."""

    def __init__(self, take: str, keep: frozenset[int]):
        self.take, self.keep = TAKES.index(take), keep
        self.candidates, self.floats, self.opened = 0, 0, 0
        self.numbers: list[Any] = []

    def part(self, it: Any, within: tuple[Any, ...], text: list[str]) -> Any:
        """The node of a leaf, or of the function itself."""
        if any(it is other for other in within):
            place = [it is other for other in within].index(True)
            if isinstance(it, _WITHOUT_BLANK):
                raise Unfingerprintable(f"{it!r} holds itself")
            text.append(f"part {place}")
            return _Outer(place)
        if _is_candidate(it, self.take):
            self.candidates, self.floats = self.candidates + 1, self.floats + (type(it) is float)
            if isinstance(it, jax.core.Tracer) or self.candidates - 1 not in self.keep:
                self.numbers.append(_as_number(it))
                text.append("input")
                return _INPUT
        contents = None if _has_name(it) else _open(it)
        if contents is None:
            _write(it, within, text)
            return it
        self.opened += 1
        if self.opened > MAX_PARTS:
            raise _TooLarge
        flat, structure = _flatten(contents)
        form: list[str] = []
        nodes = tuple([self.part(leaf, (*within, it), form) for leaf in flat])
        inner = [node for node in nodes if isinstance(node, HeldPart | _Outer)]
        inputs = sum(node is _INPUT for node in nodes) + sum(node.inputs for node in inner)
        reach = min((node.reach for node in inner), default=len(within))
        if not inputs and reach >= len(within):
            _write(it, within, text)
            return it
        if isinstance(it, types.FunctionType):
            rest = it.__module__, it.__code__, _attributes(it), _other_globals(it)
            _write_all((*within, it), *rest, structure, text=text)
        else:
            kind = type(it).__name__ if isinstance(it, _WITHOUT_BLANK) else type(it)
            _write_all((*within, it), kind, structure, text=text)
        text += form
        return HeldPart(it, structure, nodes, inputs, reach)


_templates: OrderedDict[str, Template] = OrderedDict()
_canonical: WeakSet[Any] = WeakSet()  # the functions of templates
_refused: set[str] = set()


def recognise(
    function: Any, *, take: str = "traced", keep: frozenset[int] = frozenset(), tell: bool = True
) -> tuple[Template, list[Any]] | None:
    """(the template of a function, the numbers taken out of it); None where it cannot be written down, told once.

    `take` says which numbers are taken out of closures, defaults, partials, and attributes of what methods belong to;
    those whose places are in `keep` stay.
    """
    try:
        return _recognise(function, take, keep)
    except (Unfingerprintable, RecursionError) as error:
        name = getattr(function, "__qualname__", type(function).__qualname__)
        if tell and name not in _refused:
            _refused.add(name)
            what = f"{name} cannot be recognised when the same code builds it again ({error})"
            warnings.warn(f"{what}: it compiles again then, and in every process", stacklevel=4)
        return None


def _recognise(function: Any, take: str, keep: frozenset[int]) -> tuple[Template, list[Any]]:
    known = _seen.get((_code_of(function), take, keep))
    if known is not None and (again := known(function)) is not None:
        return again
    given, (digest, parts, node, asks) = function, _dissect(function, take, keep)
    if parts.floats > MAX_FLOATS:
        found = _recognise(function, "arrays", keep)
        if (known := _seen.get((_code_of(function), "arrays", keep))) is not None:
            _seen[_code_of(function), take, keep] = known
        return found
    if digest not in _templates:
        if isinstance(function, types.FunctionType) and function in _canonical:  # it read other globals then
            function = _with_cells(function, function.__closure__)
        elif any(_is_same(function, each.function) for each in _templates.values()):  # its object was another one then
            function = functools.partial(function)
        with contextlib.suppress(TypeError):
            _canonical.add(function)
        part, sample = node if isinstance(node, HeldPart) else None, None
        if not any(isinstance(each, jax.core.Tracer) for each in parts.numbers):
            sample = [np.full(np.shape(each), 2.5, each.dtype) for each in parts.numbers]
        count = len(parts.numbers)
        _templates[digest] = Template(digest, function, part, count, asks, (take, keep), sample, given, given)
        while len(_templates) > MAX_RECOGNISED:
            _templates.popitem(last=False)
    _templates.move_to_end(digest)
    _templates[digest].latest = given
    if parts.numbers:
        _see(given, take, keep, _templates[digest])
    return _templates[digest], parts.numbers


def _dissect(function: Any, take: str, keep: frozenset[int]) -> tuple[str, _Dissection, Any, bool]:
    """(the digest of a function's text, its numbers, its node, whether it asks what numbers are)."""
    parts, text = _Dissection(take, keep), list[str]()
    try:
        node = parts.part(function, (), text)
    except _TooLarge:
        parts, text, node = _Dissection(take, keep), [], function
        _write(function, (), text)
    return hashlib.sha256("\0".join(text).encode()).hexdigest(), parts, node, any(ASKS in each for each in text)


def _is_same(one: Any, other: Any) -> bool:
    """Whether JAX takes two functions for one: methods are made anew whenever they are named."""
    return one is other or (isinstance(one, types.MethodType) and isinstance(other, types.MethodType) and one == other)


def is_own(it: Any) -> bool:
    """Whether this is a function, a method, a partial or a callable object of a user's class."""
    return isinstance(it, types.FunctionType) or (not isinstance(it, type) and _open(it) is not None)


def _trace_program(function: Any, at: Any) -> list[str] | None:
    """The text of what a function computes with arguments of these types; None where it cannot be traced."""
    try:
        closed = jax.make_jaxpr(lambda at: function(*at))(at)
        return [str(closed.jaxpr), *fingerprint(_constants_in(closed))]
    except Exception:  # whatever it is: the function is called as it was given, and says it then
        return None


def _constants_in(closed: Any) -> list[Any]:
    inner = (value for equation in closed.jaxpr.eqns for value in equation.params.values())
    return [*closed.consts, *(_constants_in(each) for each in inner if isinstance(each, jax.extend.core.ClosedJaxpr))]


def take_numbers(
    function: Any, at: Callable[[], tuple[Any, ...]], key: Any, take: str = "numbers"
) -> tuple[Template, list[Any]] | None:
    """(the template of a function, the numbers taken out of it): all that it does not need to know when it is traced.

    A number stays where a condition, NumPy or an exponent needs it. That is found out by tracing the function with the
    arguments that `at` makes, and serves all functions of the same text with the same `key`.
    """
    first = found = recognise(function, take=take)
    keep: frozenset[int] = frozenset()
    while found is not None and found[1]:
        place = found[0].digest, key
        if place not in _needed:
            while len(_needed) >= MAX_RECOGNISED:
                del _needed[next(iter(_needed))]
            _needed[place] = _find_needed(function, *found, at())
        if not _needed[place]:
            break
        every = first[1] if first else []
        free = [k for k, it in enumerate(every) if k not in keep or isinstance(it, jax.core.Tracer)]
        keep = keep.union(
            free[k] for k in _needed[place]
        )  # which of the others are needed may follow from their values
        found = recognise(function, take=take, keep=keep)
        if found is not None and len(found[1]) > len(free) - len(_needed[place]):
            return None  # what was traced stayed in an object that its parts share
    if found is not None and not found[1] and found[0].at is None:
        with contextlib.suppress(Exception):  # whatever it is: the function is called as it was given, and says it
            found[0].at = jax.tree.map(jax.typeof, at())
            found[0].program = _trace_program(function, found[0].at)
    return found


_needed: dict[tuple[str, Any], frozenset[int]] = {}


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """A function as a pytree, whose leaves are the numbers that were taken out of it."""

    template: Template
    numbers: list[Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.template.fill(self.numbers)(*arguments)

    def tree_flatten(self) -> tuple[tuple[list[Any]], Template]:
        return (self.numbers,), self.template

    @classmethod
    def tree_unflatten(cls, template: Template, numbers: tuple[list[Any]]) -> Held:
        return cls(template, *numbers)


def hold(function: Any, at: Callable[[], tuple[Any, ...]], key: Any) -> Held | None:
    """A function as a pytree of the numbers that it holds; None where it holds none that it does not need to know."""
    found = take_numbers(function, at, key) if is_own(function) else None
    return Held(*found) if found is not None and found[1] else None


def _find_needed(function: Any, template: Template, numbers: list[Any], at: tuple[Any, ...]) -> frozenset[int]:
    """The places of the numbers that a function needs to know when it is traced."""
    known = [k for k, number in enumerate(numbers) if not isinstance(number, jax.core.Tracer)]

    def given_inputs(some: Sequence[int], own: Callable[..., Any] | None = None) -> tuple[list[int], Any]:
        """(the places of the inputs, the function of these): these of the known numbers, and the traced ones."""
        inputs = [k for k in range(len(numbers)) if k in some or k not in known]

        def run(values: list[Any], at: tuple[Any, ...]) -> Any:
            given = dict(zip(inputs, values, strict=True))
            return (own or template.fill([given.get(k, number) for k, number in enumerate(numbers)]))(*at)

        return inputs, run

    def trace(some: Sequence[int], own: Callable[..., Any] | None = None) -> Any:
        """The program of the function with these of the known numbers as inputs; None where it does not take them."""
        inputs, run = given_inputs(some, own)
        try:
            return jax.make_jaxpr(run)([jax.typeof(numbers[k]) for k in inputs], at).jaxpr
        except Exception:  # whatever it is: the function is called as it was given, and says it then
            return None

    def means_the_same(some: Sequence[int]) -> bool:
        """Whether the value is that with known numbers, away from where most of its terms are 0."""
        values = []
        for each, own in ((some, None), ((), function if len(known) == len(numbers) else None)):
            inputs, run = given_inputs(each, own)
            leaves, structure = jax.tree.flatten(([numbers[k] if k in known else 0.7 for k in inputs], at))
            shifts = [0.3 + 0.1 * np.arange(np.size(leaf)).reshape(np.shape(leaf)) for leaf in leaves[len(inputs) :]]
            moved = [leaf + shift for leaf, shift in zip(leaves[len(inputs) :], shifts, strict=True)]
            values.append(jax.jit(run)(*jax.tree.unflatten(structure, leaves[: len(inputs)] + moved)))
        pairs = zip(*map(jax.tree.leaves, values), strict=True)
        return all(np.allclose(one, other, rtol=1e-6, equal_nan=True) for one, other in pairs)

    def takes(some: Sequence[int]) -> bool:
        made = trace(some)
        return made is not None and not _has_free_exponent(made) and (not template.asks or means_the_same(some))

    if len(known) == len(numbers) and _has_objects(template.part):
        floats = [number.item() if type(number) is np.float64 else number for number in numbers]  # as they were
        if str(trace([], function)) not in (str(trace([])), str(trace([], template.fill(floats)))):
            return frozenset(known)  # put together again it is another one: it asks which object something is
    if takes(known):
        return frozenset()
    taken = [k for k in known if takes([k])]
    return frozenset(known).difference(taken if takes(taken) else ())


def _has_objects(part: Any) -> bool:
    """Whether objects of the user's classes are put together again."""
    own = not isinstance(part.it, (types.FunctionType, dict, *_WITHOUT_BLANK))
    return own or any(_has_objects(node) if isinstance(node, HeldPart) else is_own(node) for node in part.nodes)


def _has_free_exponent(jaxpr: Any) -> bool:
    """Whether a power has an exponent that is not known: a square is a product only where the two is."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pow" and not isinstance(equation.invars[1], jax.extend.core.Literal):
            return True
        if any(map(_has_free_exponent, jax.extend.core.jaxprs_in_params(equation.params))):
            return True
    return False


# A function that is seen again is known by what it is made of, sooner than its text is written.


_seen: dict[tuple[int, str, frozenset[int]], Callable[[Any], tuple[Template, list[Any]] | None]] = {}


def _code_of(it: Any) -> int:
    """What a function and those that the same code builds have in common."""
    while (inner := getattr(it, "__func__", None) or getattr(it, "func", None)) is not None and _open(it) is not None:
        it = inner
    return id(it.__code__ if isinstance(it, types.FunctionType) else type(it))


def _unroll(
    it: Any, parts: list[Any], within: tuple[Any, ...] = (), contents: list[Any] | None = None
) -> tuple[list[Any], list[Any]]:
    """(all leaves that a function holds, those of its parts among them in their places, all else about these).

    The parts are added to `parts`.
    """
    flat, structure = _flatten(_open(it) if contents is None else contents)
    kind: Any = type(it)
    if kind is types.FunctionType:
        kind = it.__code__, id(it.__globals__), {**vars(it)}
    leaves, form, within = [], [kind, structure], (*within, it)
    parts.append(it)
    for leaf in flat:
        if type(leaf) in _PLAIN or isinstance(leaf, _ARRAYS):
            leaves.append(leaf)
        elif any(leaf is other for other in within):
            form.append((len(leaves), [other is leaf for other in within].index(True)))
        elif not _has_name(leaf) and (inside := _open(leaf)) is not None:
            own, inner = _unroll(leaf, parts, within, inside)
            leaves += own
            form.append((len(leaves), inner))
        else:
            leaves.append(leaf)
    return leaves, form


def _see(function: Any, take: str, keep: frozenset[int], made: Template) -> None:
    """Remember a function whose text follows from the objects that it is made of, but for the numbers taken out of it.

    A state of a group that is not known equals one of any group: it has another text, and is taken for that one.
    """
    reads: list[tuple[Any, str, Any]] = []  # the globals that it and the functions there read, and entries of classes
    changing: list[tuple[Any, Any]] = []  # arrays of NumPy and trees of arrays among these, and what they were
    sizes: list[tuple[Any, int]] = []  # of classes

    def settles(it: Any) -> bool:
        own = isinstance(it, types.FunctionType) and (it.__closure__, it.__defaults__, it.__kwdefaults__, vars(it))
        if own and not any(own):
            return _has_name(it) or read(it, _globals_read(it))
        if isinstance(it, types.ModuleType):
            return _in_library(it.__name__)
        fixed = isinstance(it, _ARRAYS) and not isinstance(it, jax.core.Tracer) and it.dtype != object
        return fixed or _never_changes(it)

    def settles_there(it: Any) -> bool:
        if settles(it) and not isinstance(it, np.ndarray):
            return True
        leaves, structure = _flatten(it)
        changing.append((it, (structure, list(map(bits, leaves)))))
        named = isinstance(it, np.ndarray) or (_has_name(type(it)) and _never_changes(structure))
        return named and not any(type(leaf) is dict for leaf in leaves) and all(map(settles, leaves))

    def read(it: types.FunctionType, found: list[tuple[str, Any]]) -> bool:
        return read_entries([(it.__globals__, name, value) for name, value in found])

    def read_entries(own: list[tuple[Any, str, Any]]) -> bool:
        new = [each for each in own if not any(each[0] is a and each[1] == b for a, b, _ in reads)]
        reads.extend(new)
        return all(settles_there(value) for _, _, value in new)

    def settles_class(kind: type) -> bool:
        """Whether all that the classes of an object say is known: functions that hold nothing, and other values."""
        found = []
        for each in (each for each in kind.__mro__ if not _in_library(each.__module__)):
            entries = [(name, value) for name, value in vars(each).items() if name not in UNREAD_ENTRIES]
            sizes.append((vars(each), len(vars(each))))
            for name, value in entries:
                if not isinstance(value, types.MemberDescriptorType) and not _is_made_by_dataclass(name, value):
                    found.append((vars(each), name, value))
        reads.extend(found)
        return type(kind) is type and all(settles_there(_function_in(value)) for _, _, value in found)

    def bits(leaf: Any) -> Any:
        """What a leaf is known by: an array by its bytes, a number also by its type, as 1 and 1.0 are not the same."""
        if isinstance(leaf, jax.core.Tracer):
            return None
        if isinstance(leaf, _ARRAYS):
            return type(leaf), leaf.shape, leaf.dtype, np.asarray(leaf).tobytes()
        return type(leaf), repr(leaf) if isinstance(leaf, float | complex) else leaf

    def is_settled(form: list[Any]) -> bool:
        kind, structure, *inner = form
        known = (isinstance(kind, type) or not kind[2]) and _never_changes(structure)
        return known and all(isinstance(each, int) or is_settled(each) for _, each in inner)

    def take_marks(flat: list[Any]) -> list[bool]:
        """Which leaves are taken out."""
        marks, place = [_is_candidate(leaf, TAKES.index(take)) for leaf in flat], -1
        for k, leaf in enumerate(flat):
            place += marks[k]
            marks[k] = marks[k] and (isinstance(leaf, jax.core.Tracer) or place not in keep)
        return marks

    parts: list[Any] = []
    flat, form = _unroll(function, parts)
    marks = take_marks(flat)
    opened = (each for each in parts if not isinstance(each, _WITHOUT_BLANK))
    if not is_settled(form) or not all(
        read(each, _other_globals(each)) if isinstance(each, types.FunctionType) else settles_class(type(each))
        for each in opened
    ):
        return
    if not all(taken or settles(leaf) for leaf, taken in zip(flat, marks, strict=True)):
        return
    same_objects = [_INPUT if isinstance(leaf, np.ndarray) else leaf for leaf in flat]  # those that cannot be changed
    kept = [None if taken else bits(leaf) for leaf, taken in zip(flat, marks, strict=True)]

    def take_out(other: Any) -> tuple[Template, list[Any]] | None:
        """The template and the numbers of a function of the same code; None where something else is not the same."""
        flat, own = _unroll(other, [])
        if own != form or take_marks(flat) != marks:
            return None
        for leaf, same_object, before, taken in zip(flat, same_objects, kept, marks, strict=True):
            if not taken and leaf is not same_object and bits(leaf) != before:
                return None
        if not all(space.get(name, vars(builtins).get(name)) is value for space, name, value in reads):
            return None
        if not all(len(entries) == size for entries, size in sizes):
            return None
        for value, (structure, before) in changing:
            leaves, now = _flatten(value)
            if now != structure or list(map(bits, leaves)) != before:
                return None
        made.latest = other
        return made, [_as_number(leaf) for leaf, taken in zip(flat, marks, strict=True) if taken]

    if len(_seen) >= MAX_RECOGNISED:
        _seen.clear()
    _seen[_code_of(function), take, keep] = take_out


def _is_candidate(leaf: Any, take: int) -> bool:
    """Whether a leaf may be taken out: traced, or real numbers, up to `take` only those that are no mere structure."""
    if isinstance(leaf, jax.core.Tracer):
        return True
    if type(leaf) is float:
        return take == 3 or (take == 2 and leaf not in STRUCTURE)
    if not take or not isinstance(leaf, _ARRAYS) or leaf.dtype.kind != "f":
        return False
    if take == 3:
        return True
    sizes = np.abs(np.asarray(leaf)).ravel()
    return not {0.0, 1.0}.issuperset((sizes if sizes.size < MAX_RECOGNISED else np.unique(sizes)).tolist())


STRUCTURE = (0.0, 1.0, -1.0)
"""Numbers that fold away where a program knows them."""


def _as_number(leaf: Any) -> Any:
    return np.float64(leaf) if type(leaf) is float else leaf
