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
    # The identities of modules that were called in this step.
    called=set(),
    is_compiling=bool,
)


def begin(name: str, owner: object) -> None:
    """Begin the range of a phase, unless the thread is in a call of this phase already."""
    if _marking.thread != threading.get_ident() or name in _marking.names_of_program:
        return
    open_ranges = _marking.open_ranges
    for open_range in open_ranges:
        if open_range.name == name:
            open_range.n_calls += open_range.owner is owner
            return
        if open_range.name == BACKWARD and name == FORWARD:
            # Checkpointing computes a forward again. It belongs to backward.
            return
    if name == DATA:
        # No update loads data, so an exception has left this range.
        close_all()
    open_ranges.append(_Range(name, owner))
    backend().push(name)


def end(name: str, owner: object) -> None:
    """End the range of a phase that began with this owner, and what is still open in it."""
    open_ranges = _marking.open_ranges
    if not open_ranges or _marking.thread != threading.get_ident():
        return
    for place, open_range in enumerate(open_ranges):
        if open_range.name == name and open_range.owner is owner:
            open_range.n_calls -= 1
            if not open_range.n_calls:
                _close(place)
            return


def close_all() -> None:
    """End all open ranges."""
    _close(0)


def _close(n_left: int) -> None:
    open_ranges = _marking.open_ranges
    while len(open_ranges) > n_left:
        open_ranges.pop()
        backend().pop()


def _before_forward(module: Any, _arguments: object) -> None:  # noqa: ANN401
    if _marking.is_compiling():
        return
    _marking.called.add(id(module))
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
        self._undo: list[Callable[[], object]] = []
        # Modules with hooks whose calls have not been seen yet.
        self._candidates: list[weakref.ref[Any]] = []
        self._n_modules = 0
        self._n_levels = 0

    def begin_step(self, number: int) -> None:
        """Mark the phases of a step, unless its capture is far away. No range is open."""
        if number < self._first_marked:
            return
        if self._is_marking:
            self._look_deeper()
        else:
            self._start()
        _marking.called.clear()

    def _start(self) -> None:
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
                if "__next__" in vars(subclass):
                    self._mark_function(subclass, "__next__", DATA)
        for name in (DATA, FORWARD, BACKWARD, OPTIMIZER):
            facts.saw(name)
        _marking.thread = threading.get_ident()

    def _mark_function(self, holder: Any, name: str, phase: str) -> None:  # noqa: ANN401
        """Replace a function of a module or a class by one with a range, until `stop`."""
        original = getattr(holder, name)
        marked = _marked(original, phase)
        setattr(holder, name, marked)

        def restore() -> None:
            # Somebody else may have replaced it too. Then ours stays, and does nothing.
            if getattr(holder, name, None) is marked:
                setattr(holder, name, original)

        self._undo.append(restore)

    def _hook_modules(self, modules: Iterable[Any]) -> None:
        for module in modules:
            if self._n_modules >= _MAX_MODULES:
                return
            # Before other hooks and after them, because FSDP gathers parameters in hooks.
            before = module.register_forward_pre_hook(_before_forward, prepend=True)
            after = module.register_forward_hook(_after_forward, always_call=True)
            self._undo += (before.remove, after.remove)
            self._candidates.append(weakref.ref(module))
            self._n_modules += 1

    def _look_deeper(self) -> None:
        """Add the children of modules that the last step did not call.

        Lightning, for example, calls the parts of its module, and not the module.
        """
        self._n_levels += 1
        if self._n_levels >= N_STEPS_BEFORE:
            return
        modules = [module() for module in self._candidates]
        self._candidates = []
        for module in modules:
            if module is None or id(module) in _marking.called or _is_compiled(module):
                continue
            children = filter(_takes_hooks, module.children())
            self._hook_modules(children)

    def stop(self) -> None:
        """End all ranges, and take all hooks back."""
        close_all()
        _marking.thread = None
        while self._undo:
            self._undo.pop()()


def _marked(original: Callable[..., Any], phase: str) -> Callable[..., Any]:
    """Return a function that calls another one in the range of a phase."""

    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        if _marking.is_compiling():
            return original(*arguments, **named)
        # An iterator of a loader calls the method of its base class.
        owner = arguments[0] if phase == DATA else None
        begin(phase, owner)
        try:
            return original(*arguments, **named)
        finally:
            end(phase, owner)

    return call


def _with_subclasses(base: type) -> list[type]:
    """Return a class and all classes that are derived from it."""
    types = [base]
    for known in types:
        types += set(known.__subclasses__()).difference(types)
    return types


def _outermost_modules(torch: Any) -> list[Any]:  # noqa: ANN401 - a module without types
    """Return the modules of this process that no other module contains.

    The garbage collector knows every module, also one that was loaded or copied.
    """
    module_type = torch.nn.Module
    is_module: dict[type, bool] = {}
    modules = []
    for candidate in gc.get_objects():
        candidate_type = type(candidate)
        if candidate_type not in is_module:
            is_module[candidate_type] = issubclass(candidate_type, module_type)
        # A module that is being made has no children yet.
        if is_module[candidate_type] and "_modules" in vars(candidate):
            modules.append(candidate)
    contained = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in contained and _takes_hooks(module)]


def _takes_hooks(module: Any) -> bool:  # noqa: ANN401 - a module without types
    """Tell whether a module may get hooks.

    Graphs of compilers are not modules of the program, and a module that is compiled in place
    would have our hooks in its graph.
    """
    torch: Any = loaded_torch()
    not_of_program = (torch.fx.GraphModule, torch.jit.ScriptModule)
    is_compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
    return not (isinstance(module, not_of_program) or is_compiled_in_place)


def _is_compiled(module: Any) -> bool:  # noqa: ANN401 - a module without types
    """Tell whether ``torch.compile`` has made this module of another one."""
    return hasattr(module, "_orig_mod")
