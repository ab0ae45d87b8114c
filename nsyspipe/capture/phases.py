"""Ranges around the phases of a program that is not changed.

`MarkedPhases` marks ``data``, ``forward``, ``backward`` and ``optimizer``. Where torch has a public
hook, it is used:

- optimizer: the hooks of all optimizers, which `nsyspipe.capture.attach` registers.
- forward: hooks of single modules. Hooks of all modules would be traced by ``torch.compile``, make
  it compile again, and slow down every layer. So `_outermost_modules` finds the few modules that
  the program may call itself. Of a module that is compiled in place, there is no range.
- backward: torch has no hook for its begin and end. The public function ``torch.autograd.backward``
  is replaced while phases are marked, because ``Tensor.backward`` calls it by this name.
- data: torch has no hook either. ``__next__`` of the class of a ``DataLoader``'s iterators is
  replaced, because an iterator may be older than the capture.

All ranges are on the thread that steps the optimizer, so that they nest. Nothing here changes an
argument, a result or an exception of the program.
"""

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from nsyspipe.capture.ranges import backend
from nsyspipe.capture.status import facts, loaded_torch

# Set to turn the phases off.
NO_PHASES = "NSYSPIPE_NO_PHASES"
DATA = "data"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
# So many steps before the capture, phases begin to be marked. In each of these steps, the children
# of modules that were not called become candidates for the outermost module.
N_STEPS_BEFORE = 4
_MAX_MODULES = 1000
_DATA_LOADERS = "torch.utils.data.dataloader"
_ITERATOR = "_BaseDataLoaderIter"


class _Range:
    """An open range, and the object whose call it covers."""

    __slots__ = ("n_calls", "name", "owner")

    def __init__(self, name: str, owner: object) -> None:
        self.name = name
        self.owner = owner
        # A module may call itself.
        self.n_calls = 1


# What is marked in this process. Hooks of modules are functions that use it, because the copy of a
# model copies its hooks. `thread` is None while nothing is marked.
_marking = SimpleNamespace(
    thread=None,
    open_ranges=[],
    # The phases that the program marks itself.
    names_of_program=frozenset(),
    # The `id` of each module that was called in this step.
    called_in_step=set(),
    is_compiling=bool,
)


def begin(name: str, owner: object) -> None:
    """Begin the range of a phase for a call of its owner, on the thread that is marked.

    Inside an open range of the same phase, no other range begins. If that range has the same owner,
    the call is counted, so that `end` ends the range with the outermost call. Inside a backward, no
    forward begins.
    """
    if _marking.thread != threading.get_ident() or name in _marking.names_of_program:
        return
    open_ranges = _marking.open_ranges
    for open_range in open_ranges:
        if open_range.name == name:
            if open_range.owner is owner:
                open_range.n_calls += 1
            return
        if open_range.name == BACKWARD and name == FORWARD:
            # Checkpointing computes a forward again during backward. It gets no range, because its
            # time belongs to backward.
            return
    if name == DATA:
        # No other phase loads data. So a range that is still open belongs to a call that an
        # exception has left, and its end was never seen.
        close_all()
    open_ranges.append(_Range(name, owner))
    backend().push(name)


def end(name: str, owner: object) -> None:
    """End a call of an owner, and the range of its phase if this was the outermost call.

    Ranges that are still open inside of this range end too. If the owner has no range of this
    phase, nothing ends.
    """
    open_ranges = _marking.open_ranges
    if not open_ranges or _marking.thread != threading.get_ident():
        return
    for n_outer_ranges, open_range in enumerate(open_ranges):
        if open_range.name == name and open_range.owner is owner:
            open_range.n_calls -= 1
            if open_range.n_calls == 0:
                _close_inner(n_outer_ranges)
            return


def close_all() -> None:
    """End all open ranges."""
    _close_inner(0)


def _close_inner(n_left_open: int) -> None:
    """End the inner ranges, until only the outermost `n_left_open` ranges are open."""
    open_ranges = _marking.open_ranges
    while len(open_ranges) > n_left_open:
        open_ranges.pop()
        backend().pop()


def _before_forward(module: Any, _arguments: object) -> None:  # noqa: ANN401
    if _marking.is_compiling():
        return
    _marking.called_in_step.add(id(module))
    begin(FORWARD, module)


def _after_forward(module: Any, _arguments: object, _result: object) -> None:  # noqa: ANN401
    if _marking.is_compiling():
        return
    end(FORWARD, module)


def before_optimizer(optimizer: Any, *_arguments: object) -> None:  # noqa: ANN401
    """Begin the phase of an optimizer. A hook of torch."""
    if _marking.is_compiling():
        return
    begin(OPTIMIZER, optimizer)


def after_optimizer(optimizer: Any) -> None:  # noqa: ANN401 - of a module without types
    """End the phase of an optimizer."""
    end(OPTIMIZER, optimizer)


class MarkedPhases:
    """The phases of a program's steps, from some steps before its capture to the end of it."""

    def __init__(self, first_captured: int) -> None:
        self._first_marked = first_captured - N_STEPS_BEFORE
        self._is_marking = False
        # Each call takes back one hook or one replaced function.
        self._undo: list[Callable[[], object]] = []
        # Modules with hooks whose calls have not been seen yet.
        self._candidates: list[weakref.ref[Any]] = []
        self._n_hooked_modules = 0
        # How many levels below the outermost modules were reached so far.
        self._n_deeper_levels = 0

    def begin_step(self, number: int) -> None:
        """Mark the phases of the step that begins, if the capture is near.

        Call it between two steps, while no range is open.
        """
        if number < self._first_marked:
            return
        if self._is_marking:
            self._hook_children_of_uncalled()
        else:
            self._start()
        # From here, the calls are those of the step that begins.
        _marking.called_in_step.clear()

    def _start(self) -> None:
        """Put hooks and marked functions into the program, and mark what this thread does."""
        torch: Any = loaded_torch()
        self._is_marking = True
        _marking.names_of_program = frozenset(facts.phase_names)
        _marking.is_compiling = torch.compiler.is_compiling
        self._hook_modules(_outermost_modules(torch))
        self._mark_function(torch.autograd, "backward", BACKWARD)
        loaders = sys.modules.get(_DATA_LOADERS)
        iterator_type = getattr(loaders, _ITERATOR, None)
        if iterator_type is not None:
            for subclass in _with_subclasses(iterator_type):
                # A class without its own `__next__` inherits a marked one.
                if "__next__" in vars(subclass):
                    self._mark_function(subclass, "__next__", DATA)
        # The sidecar names all phases that are marked here, also one that this loop never has.
        for name in (DATA, FORWARD, BACKWARD, OPTIMIZER):
            facts.saw(name)
        _marking.thread = threading.get_ident()

    def _mark_function(self, holder: Any, name: str, phase: str) -> None:  # noqa: ANN401
        """Replace a function of a module or a class by one with a range, until `stop`."""
        original = getattr(holder, name)
        marked = _marked(original, phase)
        setattr(holder, name, marked)

        def restore() -> None:
            # If somebody else has replaced our function since, theirs stays. Theirs may call ours.
            # After `stop`, ours makes no range, and calls the original function.
            if getattr(holder, name, None) is marked:
                setattr(holder, name, original)

        self._undo.append(restore)

    def _hook_modules(self, modules: Iterable[Any]) -> None:
        """Give hooks to modules, which become candidates. Stop at the limit of modules."""
        for module in modules:
            if self._n_hooked_modules >= _MAX_MODULES:
                return
            # Our hooks run before and after the other hooks of a module, so that its range contains
            # them: FSDP gathers parameters in hooks.
            before = module.register_forward_pre_hook(_before_forward, prepend=True)
            after = module.register_forward_hook(_after_forward, always_call=True)
            self._undo += (before.remove, after.remove)
            self._candidates.append(weakref.ref(module))
            self._n_hooked_modules += 1

    def _hook_children_of_uncalled(self) -> None:
        """Give hooks to the children of each candidate that the last step did not call.

        These children are the new candidates. Lightning, for example, calls the parts of its
        module, and not the module. Each step before the capture goes one level deeper.
        """
        self._n_deeper_levels += 1
        # From the first captured step on, no hooks are added.
        if self._n_deeper_levels >= N_STEPS_BEFORE:
            return
        candidates = [reference() for reference in self._candidates]
        self._candidates = []
        for module in candidates:
            if module is None:
                # The program has dropped it.
                continue
            if id(module) in _marking.called_in_step or _is_compiled(module):
                continue
            children = filter(_takes_hooks, module.children())
            self._hook_modules(children)

    def stop(self) -> None:
        """End all ranges, and take all hooks back."""
        close_all()
        _marking.thread = None
        while self._undo:
            take_back_newest = self._undo.pop()
            take_back_newest()


def _marked(original: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """Return a function that calls the original one in the range of a phase."""

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if _marking.is_compiling():
            return original(*arguments, **named)
        owner = None
        if phase == DATA:
            # The iterator of a loader (`self`). Its `__next__` may call that of its base class, and
            # both are marked. As both calls have the same owner, they make one range, which ends
            # with the outer call.
            owner = arguments[0]
        begin(phase, owner)
        try:
            return original(*arguments, **named)
        finally:
            end(phase, owner)

    return call


def _with_subclasses(base: type) -> list[type]:
    """Return a class and all classes that are derived from it."""
    types = [base]
    # The list grows while the loop walks it, so the subclasses of subclasses get their turn.
    for known_type in types:
        subclasses: set[type] = set(known_type.__subclasses__())
        types.extend(subclasses.difference(types))
    return types


def _outermost_modules(torch: Any) -> list[Any]:  # noqa: ANN401 - a module without types
    """Return the modules of this process that no other module contains.

    The garbage collector knows every module, also one that was loaded or copied.
    """
    # There are millions of objects of few types, so each type is examined once.
    is_type_of_modules: dict[type, bool] = {}
    modules = []
    for candidate in gc.get_objects():
        candidate_type = type(candidate)
        if candidate_type not in is_type_of_modules:
            is_type_of_modules[candidate_type] = issubclass(candidate_type, torch.nn.Module)
        # A module whose constructor has only begun has no `_modules`, and cannot be asked for its
        # children.
        if is_type_of_modules[candidate_type] and "_modules" in vars(candidate):
            modules.append(candidate)
    ids_of_children = {id(child) for module in modules for child in module.children()}
    outermost = [module for module in modules if id(module) not in ids_of_children]
    return [module for module in outermost if _takes_hooks(module)]


def _takes_hooks(module: Any) -> bool:  # noqa: ANN401 - a module without types
    """Tell whether a module may get hooks.

    The graph of a compiler may not, because it is no module of the program. Neither may a module
    that is compiled in place, because our hooks would become part of its graph.
    """
    torch: Any = loaded_torch()
    is_graph_of_compiler = isinstance(module, (torch.fx.GraphModule, torch.jit.ScriptModule))
    is_compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    return not is_graph_of_compiler and not is_compiled_in_place


def _is_compiled(module: Any) -> bool:  # noqa: ANN401 - a module without types
    """Tell whether ``torch.compile`` has made this module of another one."""
    return hasattr(module, "_orig_mod")
