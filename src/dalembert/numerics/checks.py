"""What a user gives, numbers and functions: read, checked, and refused by name with what is allowed."""

from __future__ import annotations

import inspect
import math
import numbers
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial, wraps
from html import escape
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ..errors import InvalidInput, NumericalFailure, refuse_traced
from ..kernels import LoweringError

P = ParamSpec("P")
R = TypeVar("R")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])
TOLERANCE = 1e-8  # by which a matrix that a user gives may be off its group
TRACED_TOLERANCE = 1e-6  # by which one that JAX traces may, or a start its constraint: numbers of 32 bits do
KNOWN: set[type] = {float, int, bool, np.float64, np.ndarray, type(None)}  # types of numbers that JAX never traces
MAX_SHOWN = 200  # characters of a value in a message
PATIENCE = 1.0  # seconds after which a notebook shows that a call is still at work
LONG_RUN = 100_000  # steps of a run that tells a notebook how far it is


def is_traced(value: Any) -> bool:
    """Whether the numbers are unknown because JAX is tracing (then only shapes can be checked)."""
    if type(value) in KNOWN:
        return False
    for kind in set(map(type, jax.tree.leaves(value))) - KNOWN:
        if issubclass(kind, jax.core.Tracer):
            return True
        if issubclass(kind, Array):
            KNOWN.add(kind)
    return False


def array(value: Any) -> Array:
    """`value` as an array of doubles. It compiles nothing, whereas `jnp.asarray` compiles a copy for every shape."""
    try:
        if any(isinstance(leaf, Array) for leaf in jax.tree.leaves(value)):
            return jnp.asarray(value, float)
        placed: Array = jax.device_put(np.asarray(value, float))
    except (TypeError, ValueError, OverflowError) as fault:
        raise InvalidInput(f"{show(value)} was given; allowed: real numbers") from fault
    return placed


def namespace(*values: Any) -> Any:
    """The functions for these numbers: NumPy's, or JAX's where one is traced. Op by op JAX would compile each."""
    return jnp if is_traced(values) else np


def diagonal(entries: Any) -> Array:
    """The diagonal matrix with these entries."""
    given = array(entries)
    return array(namespace(given).diag(given))


def show(value: Any) -> str:
    """What was given, for a message: a class or a function by its name, anything else as Python writes it, cut."""
    if inspect.isclass(value) or inspect.isroutine(value):
        kind = "class" if inspect.isclass(value) else "method" if inspect.ismethod(value) else "function"
        return f"the {kind} {value.__name__}"
    if isinstance(value, jax.core.Tracer):
        return f"an array {value.shape} that JAX traces" if value.shape else "a number that JAX traces"
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def require_known(what: str, value: Any, instead: str = "ask for it outside") -> None:
    """Refuse numbers that JAX traces where they have to be known; of a dictionary of arguments, by their names."""
    if is_traced(value):
        which = "them"
        if isinstance(value, dict):
            which = " and ".join(name for name, given in value.items() if is_traced(given))
        raise InvalidInput(f"{what} needs numbers that are known, but JAX traces {which} (jit, grad, vmap): {instead}")


def known_arguments(instead: str) -> Callable[[Decorated], Decorated]:
    """A decorator of functions, or of classes and their public methods, whose arguments have to be known.

    Arguments that JAX traces are refused by their names, and arguments that do not fit by those that do.
    """

    def refuse(function: Callable[P, R]) -> Callable[P, R]:
        takes = inspect.signature(function)
        names = tuple(takes.parameters)

        @wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            if is_traced((given, named)):
                require_known(function.__name__, dict(zip(names, given, strict=False)) | named, instead)
            try:
                return function(*given, **named)
            except TypeError as fault:
                _explain_call(function.__name__, takes, given, named, fault)
                raise

        return call

    def decorate(it: Decorated) -> Decorated:
        if not inspect.isclass(it):
            return cast(Decorated, refuse(it))
        for name, method in list(vars(it).items()):
            if inspect.isfunction(method) and not name.startswith("_"):
                setattr(it, name, refuse(method))
        return it

    return decorate


def _explain_call(name: str, takes: inspect.Signature, given: Any, named: Any, fault: TypeError) -> None:
    """Refuse arguments that are not those of a function by a sentence that has its own."""
    try:
        takes.bind(*given, **named)
    except TypeError as fit:
        own = [each.replace(annotation=each.empty) for key, each in takes.parameters.items() if key != "self"]
        unknown = [key for key in named if key not in takes.parameters]
        with_what = str(fit).replace("missing a required argument: ", "no ")
        why = f"does not take {', '.join(unknown)}" if unknown else f"was called with {with_what}"
        raise InvalidInput(f"{name} {why}; it takes {inspect.Signature(own)}") from fault


def require_instance(name: str, value: Any, kind: type[Any], allowed: str) -> None:
    """Refuse what is not of this class; of a class or function that makes one, say that it has to be called."""
    if isinstance(value, kind):
        return
    hint = ""
    if (inspect.isclass(value) and issubclass(value, kind)) or inspect.isfunction(value):
        parameters = inspect.signature(value).parameters.values()
        needed = any(each.default is each.empty and each.kind < each.VAR_POSITIONAL for each in parameters)
        hint = f", such as {value.__name__}({'...' * needed})"
    raise InvalidInput(f"{name} is {show(value)}; allowed: {allowed}{hint}")


def require_function(name: str, value: Any, arguments: str, *, optional: bool = True) -> None:
    """Refuse what cannot be called; None stands for no function where it is `optional`."""
    if not (callable(value) or (optional and value is None)):
        raise InvalidInput(f"{name} is {show(value)}; allowed: a function of {arguments}{' or None' * optional}")


def require_progress(progress: Any, arguments: str) -> None:
    """Refuse a report of progress that is no function of these arguments, before anything runs."""
    require_function("progress", progress, arguments)
    if isinstance(progress, type):
        raise InvalidInput(f"progress is the class {progress.__name__}; allowed: a function of {arguments} or None")
    if progress is None:
        return
    try:
        inspect.signature(progress).bind(*arguments.split(","))
    except TypeError as fault:
        raise InvalidInput(f"progress has {fault}; allowed: a function of {arguments}") from fault
    except ValueError:  # it does not tell what it takes
        return


def read_reals(value: Any) -> Any:
    """The array of real numbers that `value` is, as NumPy or JAX reads it; None where it is not one."""
    try:
        given: Any = jnp.asarray(value) if is_traced(value) and not isinstance(value, Array) else value
        given = given if isinstance(given, Array) and is_traced(given) else np.asarray(given)
        if given.dtype.kind == "O" and all(isinstance(x, numbers.Real) and x not in (True, False) for x in given.flat):
            given = given.astype(float)  # whole numbers beyond 64 bits, and fractions
    except (TypeError, ValueError, OverflowError):
        return None
    return given if given.dtype.kind in "iuf" else None


def finite_reals(name: str, value: Any) -> Any:
    """`value` as finite doubles, of NumPy unless they are traced: complex numbers, truth values, text are refused."""
    given = read_reals(value)
    if given is None:
        raise InvalidInput(f"{name} is {show(value)}; allowed: real numbers")
    if not is_traced(given) and not np.isfinite(given).all():
        raise InvalidInput(f"{name} must be finite; given {show(given.tolist())}")
    return given if given.dtype == float and is_traced(given) else given.astype(float)


def real(name: str, value: Any) -> Array:
    """`finite_reals` as an array of JAX."""
    given = finite_reals(name, value)
    return value if isinstance(value, Array) and value.dtype == float else array(given)


def say_many(given: Any, *allowed: tuple[int, ...]) -> str:
    """What a shape with one more axis in front than is allowed may mean, for a message."""
    several = np.shape(given)[1:] in allowed and np.ndim(given) > 0
    return ". An axis in front is one of many runs: da.ensemble, or jax.vmap around the call for one" if several else ""


def vector(value: Any, size: int, name: str) -> Array:
    """`value` as a finite vector of `size` numbers, of NumPy unless they are traced, or a clear error."""
    given: Array = finite_reals(name, value)
    if given.shape != (size,):
        raise InvalidInput(f"{name} has shape {given.shape}; allowed: ({size},){say_many(given, (size,))}")
    return given


def positive_int(name: str, value: Any) -> int:
    """`value` as a whole number of at least 1, or a clear error."""
    if is_traced(value):
        raise InvalidInput(
            f"{name} is {show(value)}; allowed: a whole number of at least 1 that is known, for arrays have sizes that "
            "depend on it (jax.jit(..., static_argnames=...) leaves an argument as it is)"
        )
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InvalidInput(f"{name} is {show(value)}; allowed: a whole number of at least 1")
    return int(value)


def _one(description: str, is_allowed: Callable[[Any], bool], name: str, value: Any) -> Array:
    """`value` as one number that is finite and allowed, or a clear error."""
    if type(value) is np.ndarray and value.dtype == float and not value.ndim:
        value = value.item()
    if type(value) is float and math.isfinite(value) and is_allowed(value):
        given: Any = np.float64(value)
        return cast(Array, given)
    number = read_reals(value)
    if number is not None and not number.ndim:
        if is_traced(number):
            return jnp.asarray(number, float)
        checked: Array = number.astype(float)[()]  # Models compute with it, and op by op JAX would compile.
        if np.isfinite(checked) and is_allowed(checked):
            return checked
    raise InvalidInput(
        f"{name} is {show(value)}; allowed: {description}{'' if number is None else say_many(number, ())}"
    )


positive = partial(_one, "one positive number", lambda x: x > 0)
not_negative = partial(_one, "one number, not negative", lambda x: x >= 0)
finite = partial(_one, "one finite number", lambda x: True)
not_zero = partial(_one, "any finite number but 0", lambda x: x != 0)


def require_range(name: str, value: Any, low: float, high: float) -> None:
    """Refuse what is not a number from `low` to `high`."""
    refuse_traced(name, value)
    if isinstance(value, bool) or not (isinstance(value, int | float) and low <= value <= high):
        raise InvalidInput(f"{name} is {show(value)}; allowed: a number in [{low:g}, {high:g}]")


def parse(value: Any, group: str, shapes: dict[tuple[int, ...], str]) -> Array:
    """An array-like of finite real numbers with one of the allowed shapes, as floats of NumPy (if not traced)."""
    given = read_reals(value)
    if isinstance(given, np.ndarray) and given.shape in shapes and np.isfinite(given).all():
        known: Any = given.astype(float)
        return cast(Array, known)
    choices = " or ".join(f"{what} of shape {shape}" for shape, what in shapes.items())
    allowed = f"an element of {group} must be {choices}"
    if given is None:
        raise InvalidInput(f"{allowed}, of real numbers, but {show(value)} was given")
    if given.shape not in shapes:
        raise InvalidInput(f"{allowed}, but an array of shape {given.shape} was given{say_many(given, *shapes)}")
    if not is_traced(given) and not np.isfinite(given).all():
        raise InvalidInput(f"{allowed}, finite, but {show(given.tolist())} was given")
    made: Array = given.astype(float)
    return made


MISTAKES = {
    jax.errors.TracerBoolConversionError: "asks whether a number that JAX traces is true (if, while, and, or, min, "
    "max): use jnp.where(condition, this, that), jnp.minimum, jnp.logical_and",
    jax.errors.TracerArrayConversionError: "gives a number that JAX traces to NumPy: use jax.numpy (jnp.sin, ...)",
    jax.errors.TracerIntegerConversionError: "takes a number that JAX traces as an index: use jnp.array(...)[index]",
    jax.errors.ConcretizationTypeError: "asks for the value of a number that JAX traces (float, int, math): use "
    "jax.numpy (jnp.sqrt, jnp.floor)",
    jax.errors.UnexpectedTracerError: "uses a number that it kept from another call: return it, keep nothing",
}
"""What a function does that JAX cannot trace, by the exception that comes of it."""


def call_own(words: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments) of a user, whose exceptions become sentences; `words` say how it is called: "f(t, g)"."""
    try:
        return function(*arguments)
    except (InvalidInput, NumericalFailure, LoweringError):
        raise
    except Exception as error:  # whatever a user's code may raise
        if mistake := next((said for kind, said in MISTAKES.items() if isinstance(error, kind)), None):
            raise InvalidInput(f"{words} {mistake}") from error
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError:
            takes = inspect.signature(function)
            raise InvalidInput(f"the function is called as {words}, but it takes {takes}") from error
        except ValueError:  # it has no signature
            pass
        said, code = str(error).strip().partition("\n")[0], getattr(function, "__code__", None)
        lines = [at for at in traceback.extract_tb(error.__traceback__) if code and at.filename == code.co_filename]
        where = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
        none = words.endswith(", p)") and arguments[-1] is None and "NoneType" in said
        hint = ". There are no parameters, p is None: give parameters={...}" if none else ""
        if words.endswith(", p)") and "incompatible shapes" in said.lower():
            hint = _describe_axes(arguments[-1])
        raise InvalidInput(f"{words} fails: {type(error).__name__}: {said}{where}{hint}") from error


def _describe_axes(parameters: Any) -> str:
    """Which parameters are arrays, where shapes do not fit: one axis too many is many systems."""
    shapes = [
        (jax.tree_util.keystr(path), np.shape(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(parameters)
    ]
    arrays = ", ".join(f"p{name} {shape}" for name, shape in shapes if shape)
    many = "with an axis in front they are many systems: jax.vmap around simulate, or da.ensemble"
    return f". Parameters that are arrays: {arrays}; {many}" if arrays else ""


def own_value(words: str, function: Callable[..., Any], *arguments: Any, kinds: str = "iuf") -> Array:
    """The array that a user's function gives; `kinds` are the kinds of numbers that it may be of."""
    value = call_own(words, function, *arguments)
    try:
        made = jnp.zeros(0, bool) if value is None else jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{words} gave {show(value)}; allowed: real numbers") from error
    if made.dtype.kind not in kinds:
        given = "None" if value is None else f"numbers of type {made.dtype}"
        raise InvalidInput(f"{words} gave {given}; allowed: real numbers (of type {jnp.zeros(()).dtype})")
    return made if made.dtype.kind == "f" else made.astype(float)


def html_table(title: str, rows: Mapping[str, Any]) -> str:
    """Names and values, one row each, for a notebook."""
    cell = "text-align:left; vertical-align:top; font-family:inherit"
    head, body = f'<tr><th style="{cell}">', f'</th><td style="{cell}; white-space:pre">'
    lines = [f"{head}{escape(str(name))}{body}{escape(str(value))}</td></tr>" for name, value in rows.items()]
    return f"<table><caption><b>{escape(title)}</b></caption>{''.join(lines)}</table>"


class NotebookBar:
    """What a notebook shows of a call that takes longer than PATIENCE: how far it is, or that it compiles."""

    now: ClassVar[NotebookBar | None] = None  # the call that is shown: one at a time, the outermost
    busy: ClassVar[threading.Event] = threading.Event()
    lock: ClassVar[threading.Lock] = threading.Lock()
    watch: ClassVar[threading.Thread | None] = None

    def __init__(self, title: str) -> None:
        self.title, self.words, self.share, self.begin, self.shown = title, "compiling", "", time.monotonic(), None

    def say(self, words: str) -> None:
        """Show these words from now on."""
        self.words = words

    def count(self, done: int, total: int, note: str = "") -> None:
        """Show how many of how many are done."""
        self.words, self.share = f"{done:,} of {total:,}{note}", f'<progress value="{done}" max="{total}"></progress> '

    def draw(self) -> None:
        """Show the bar, or change what it shows."""
        from IPython.display import HTML, display

        page = HTML(f"{self.share}{escape(self.title)}: {escape(self.words)}, {time.monotonic() - self.begin:.0f} s")
        if self.shown is None:
            self.shown = display(page, display_id=True)
        else:
            self.shown.update(page)

    def __enter__(self) -> None:
        NotebookBar.now = self
        if NotebookBar.watch is None:
            NotebookBar.watch = threading.Thread(target=self._watch, daemon=True, name="dalembert progress")
            NotebookBar.watch.start()
        self.busy.set()

    def __exit__(self, *_: object) -> None:
        self.busy.clear()
        with self.lock:
            NotebookBar.now = None
            if self.shown is not None:
                from IPython.display import HTML

                self.shown.update(HTML(""))

    @classmethod
    def _watch(cls) -> None:
        while cls.busy.wait():
            time.sleep(PATIENCE / 4)
            with cls.lock:
                if cls.now is not None and time.monotonic() - cls.now.begin > PATIENCE:
                    cls.now.draw()


def shows_progress(
    report: Callable[[NotebookBar], Callable[..., None]], is_long: Callable[[Mapping[str, Any]], bool] = lambda _: True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: in a notebook a long call of this function shows a bar, which its `progress` moves if `is_long`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            if "ipykernel" not in sys.modules or NotebookBar.now is not None or options.get("progress") is not None:
                return function(*arguments, **options)
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **options)
            bar = NotebookBar(function.__name__)
            if is_long(options) and not is_traced((arguments, options)):
                options["progress"] = report(bar)
            with bar:
                return function(*arguments, **options)

        return call

    return decorate


def is_long_run(options: Mapping[str, Any]) -> bool:
    """Whether the options of a run ask for so many steps that it tells how far it is; that costs short runs time."""
    steps, end, step = (options.get(name) for name in ("steps", "t_end", "step"))
    if isinstance(steps, int):
        return steps >= LONG_RUN
    return isinstance(end, int | float) and isinstance(step, int | float) and abs(end) >= LONG_RUN * abs(step) > 0
