"""What `fbompi list` shows."""

from __future__ import annotations

from dataclasses import MISSING
from importlib import import_module
from types import ModuleType
from typing import Any

from fbompi import registry
from fbompi.algorithms.method import ANYONE
from fbompi.config import Key, keys_of
from fbompi.problem import DERIVED, NONSMOOTH, REQUIRED, family, native_oracles

# What the participation of [clients] means for a method; docs/methods.md says which rounds need others too.
PARTICIPATION = {
    "synchronous": "full, sampled (with or without replacement), scheduled, anarchic; anew in every round",
    "asynchronous": "whoever answers; of the idle, all, a sample, the scheduled or the present are asked",
}
KERNELS = ("regression", "mlp", "sweeps", "jacobian")


def listing(what: str | None) -> dict[str, Any]:
    """Methods, problems and kernels as figures."""
    figures: dict[str, Any] = {}
    if what in (None, "algorithms"):
        figures["algorithms"] = {
            name: {
                "about": _first_line(c),
                "paper": c.paper,
                "family": c.family,
                **c.facts,
                "participation": PARTICIPATION[c.facts["communication"]],
                "clients": [*c.client_keys, *ANYONE],
                "parameters": _parameters(c.Parameters),
            }
            for name, c in registry.algorithms().items()
        }
    if what in (None, "problems"):
        figures["problems"] = {name: _problem(registry.problem(name)) for name in registry.problems()}
    if what in (None, "kernels"):
        figures["kernels"] = {name: _kernel(import_module(f"fbompi.kernels.{name}")) for name in KERNELS}
    return figures


def _kernel(module: ModuleType) -> dict[str, Any]:
    public = {
        name: _first_line(member)
        for name, member in vars(module).items()
        if getattr(member, "__module__", None) == module.__name__ and member.__doc__ and not name.startswith("_")
    }
    return {"about": _first_line(module), "offers": public}


def _problem(c: Any) -> dict[str, Any]:
    kind = family(c)
    native = [*REQUIRED, *native_oracles(c)] if kind == "smooth" else list(NONSMOOTH)
    return {
        "about": _first_line(c),
        "family": kind,
        "native": native,
        "derived": [name for name in DERIVED if name not in native] if kind == "smooth" else [],
        "metrics": {**getattr(c, "metric_meanings", {}), **getattr(c, "exact_meanings", {})},
        "parameters": _parameters(c),
    }


def _first_line(c: Any) -> str:
    return (c.__doc__ or "").strip().split("\n")[0]


def _parameters(section: Any) -> dict[str, dict[str, Any]]:
    keys: dict[str, Key] = keys_of(section) or {}
    return {
        k.name: {"default": None if k.default is MISSING else k.default, "meaning": k.meaning, "expected": k.expected()}
        for k in keys.values()
    }


def listing_page(figures: dict[str, Any]) -> str:
    """The same for people."""
    lines = []
    for group, members in figures.items():
        lines.append(f"{group}:")
        for name, member in members.items():
            lines.append(f"\n  {name}: {member['about']}")
            if "paper" in member:
                lines.append(f"    {member['paper']}")
                told = {k: member[k] for k in ("family", "communication", "order", "rate", "participation")}
                lines += [f"      {key}: {text}" for key, text in told.items()]
            elif "offers" in member:
                lines += [f"      {key:<26} {about}" for key, about in member["offers"].items()]
            else:
                own = [name for name in member["native"] if name not in REQUIRED]
                derived = f"; derived: {', '.join(member['derived'])}" if member["derived"] else ""
                lines.append(f"    {member['family']}; oracles of its own: {', '.join(own) or 'none'}{derived}")
                if member["metrics"]:
                    lines.append(f"    metrics: {', '.join(member['metrics'])}")
            for key, p in member.get("parameters", {}).items():
                lines.append(f"      {key + ' = ' + str(p['default']):<26} {p['meaning']}; {p['expected']}")
        lines.append("")
    return "\n".join(lines).rstrip()
