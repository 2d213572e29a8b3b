"""`edgecloud cache`: what is kept, answers and computed prefixes, and how often such answers were wrong."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

import click

from edgecloud.errors import BadRequest, NotFound
from edgecloud.units import count, money

from ..text_files import write_private
from . import cache_prefixes as prefixes
from . import offers
from .group import ListingGroup
from .shell import State, Whole, local_time, print_json, print_table, print_text

if TYPE_CHECKING:
    from ...cache.answers import AnswerCache
    from ...cache.records import Entry, Removal, ScopeStats, Stats

AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(cls=ListingGroup)
def cache() -> None:
    """List, show, export and forget kept answers and computed prefixes.

    Each is named by its id or the beginning of it.
    """


@cache.command("list")
@click.option("-n", "--limit", type=Whole(1), default=20, show_default=True, help="How many.")
@AS_JSON
@click.pass_obj
def list_(state: State, limit: int, as_json: bool) -> None:
    """List kept answers, the newest first, then computed prefixes, the last used first."""
    with closing(_open(state, for_reading=True)) as answers:
        entries = answers.entries(limit)
    saved = prefixes.list_prefixes(state.settings(), limit)
    if as_json:
        print_json([*(entry._asdict() for entry in entries), *(entry._asdict() for entry in saved)])
        return
    print_table(
        [
            (
                entry.id,
                local_time(entry.created),
                count(entry.hits, "hit"),
                entry.answerer,
                " ".join(entry.prompt.split()),
            )
            for entry in entries
        ]
        + [prefixes.line(entry) for entry in saved]
    )


@cache.command()
@click.argument("answer", shell_complete=offers.kept)
@AS_JSON
@click.pass_obj
def show(state: State, answer: str, as_json: bool) -> None:
    """Show an answer or a prefix: what it was given to, by whom, how long it keeps."""
    if answer.startswith(prefixes.ID):
        saved = prefixes.find_prefix(state.settings(), answer)
        if as_json:
            print_json(saved._asdict())
        else:
            print_table(prefixes.details(saved))
        return
    with closing(_open(state, for_reading=True)) as answers:
        entry = _find(answers, answer)
    if as_json:
        print_json(entry._asdict())
        return
    print_table(
        [
            ("id", entry.id),
            ("answered by", entry.answerer),
            ("kept since", local_time(entry.created)),
            ("until", local_time(entry.expires)),
            ("given again", count(entry.hits, "time")),
            ("belongs to", entry.chat_id or entry.scope),
            *([("blocked", "it was called wrong and is not given any more")] if entry.blocked else []),
        ]
    )
    print_text(f"\n> {entry.prompt}\n\n{entry.answer}")


@cache.command()
@click.argument("names", nargs=-1, required=True, metavar="ANSWER...", shell_complete=offers.kept)
@click.option("--wrong", is_flag=True, help="They were wrong: be more careful with similar questions.")
@AS_JSON
@click.pass_obj
def forget(state: State, names: tuple[str, ...], wrong: bool, as_json: bool) -> None:
    """Delete answers and prefixes for good."""
    settings = state.settings()
    saved = [prefixes.find_prefix(settings, name).id for name in names if name.startswith(prefixes.ID)]
    with closing(_open(state)) as answers:
        ids = [_find(answers, name).id for name in names if not name.startswith(prefixes.ID)]
        if wrong:
            for entry_id in ids:
                answers.blame(entry_id)
        removals = [answers.forget(entry_id) for entry_id in ids]
    purged = [each.purged for each in removals] + [prefixes.forget_prefix(settings, each) for each in saved]
    _tell(sum(each.num_answers for each in removals), len(saved), all(purged), as_json=as_json)


@cache.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@AS_JSON
@click.pass_obj
def clear(state: State, yes: bool, as_json: bool) -> None:
    """Delete every kept answer, all that was learned from them, and every computed prefix."""
    if not yes and not sys.stdin.isatty():
        raise BadRequest("Deleting all that is kept needs --yes where nobody can be asked.")
    if not yes:
        click.confirm("Delete every kept answer and every computed prefix?", abort=True, err=True)
    with closing(_open(state)) as answers:
        removal: Removal = answers.clear()
    cleared = prefixes.clear_prefixes(state.settings())
    num_prefixes, purged = cleared or (0, True)
    _tell(removal.num_answers, num_prefixes, removal.purged and purged, as_json=as_json)


@cache.command()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    shell_complete=offers.files,
    help="A new file (only you can read it) instead of stdout.",
)
@click.pass_obj
def export(state: State, output: str | None) -> None:
    """Export every kept answer, one JSON object a line, the newest first."""
    import json

    with closing(_open(state, for_reading=True)) as answers:
        lines = [json.dumps(entry._asdict(), ensure_ascii=False) for entry in answers.entries(-1)]
    if output is None:
        if lines:
            print_text("\n".join(lines))
        return
    write_private(output, "".join(line + "\n" for line in lines))


@cache.command()
@AS_JSON
@click.pass_obj
def stats(state: State, as_json: bool) -> None:
    """Say how often kept answers are given, what they save, and how often similar ones were wrong."""
    settings = state.settings()
    with closing(_open(state, for_reading=True)) as answers:
        found: Stats = answers.stats()
    saved = prefixes.prefix_stats(settings)
    if as_json:
        scopes = [each._asdict() for each in found.scopes]
        prefixed = saved._asdict() if saved is not None else None
        print_json(found._asdict() | {"scopes": scopes, "prefixes": prefixed})
        return
    print_table(
        _rows(found, settings.cache.max_wrong_per_100_requests)
        + (prefixes.stat_rows(saved) if saved is not None else [])
    )


def _rows(stats: Stats, bound: float) -> list[tuple[str, ...]]:
    hits = stats.exact_hits + stats.semantic_hits
    share = f" ({100 * hits / stats.lookups:.0f} %)" if stats.lookups else ""
    return [
        ("kept answers", f"{stats.entries}, {stats.bytes / 1e6:.1f} MB"),
        ("requests", str(stats.lookups)),
        ("answered from here", f"{hits}{share}: {stats.exact_hits} exact, {stats.semantic_hits} similar"),
        ("saved", f"{stats.seconds_saved:.0f} s, {money(stats.cost_saved)} in money"),
        ("checked", f"{stats.audits} similar ones computed after all, {stats.audits_wrong} of them wrong"),
        ("called wrong", f"{stats.blamed} by you"),
        ("wrong of 100 requests", f"{_estimate(stats.wrong_per_100)}; {bound:g} are allowed"),
        ("similar enough", _enough(stats)),
        *(
            (f"the same for {_whose(each.scope)}", f"{_estimate(each.wrong_per_100)}; {_enough(each)}")
            for each in stats.scopes
            if each.scope != "user"
        ),
    ]


def _estimate(wrong_per_100: tuple[float, float, float]) -> str:
    _, expected, most = wrong_per_100
    return f"about {expected:.2f}, at most {most:.2f} with 90 % confidence" if most else "not known yet"


def _enough(stats: Stats | ScopeStats) -> str:
    return stats.off_because or f"from a probability of {stats.threshold:.3f} on"


def _whose(scope: str) -> str:
    """A scope as a person knows it: the key's hash is what the log calls it."""
    return "HTTP without a key" if scope == "http" else scope.replace("key:", "the key ")


def _open(state: State, *, for_reading: bool = False) -> AnswerCache:
    from ..databases import open_answers

    return open_answers(state.settings(), for_reading=for_reading)


def _find(answers: AnswerCache, name: str) -> Entry:
    found = answers.resolve(name)
    exact = [entry for entry in found if entry.id == name]
    if exact or len(found) == 1:
        return (exact or found)[0]
    if found:
        raise NotFound(f"Several kept answers begin with {name[:80]!r}: give more of the id.")
    raise NotFound(
        f"There is no kept answer {name[:80]!r}: `edgecloud cache list` shows them; four digits are enough."
    )


def _tell(num_answers: int, num_prefixes: int, purged: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({"num_answers": num_answers, "num_prefixes": num_prefixes, "purged": purged})
        return
    told = []
    if num_answers or not num_prefixes:
        told.append(count(num_answers, "kept answer"))
    if num_prefixes:
        told.append(count(num_prefixes, "computed prefix", "computed prefixes"))
    print_text(f"Deleted {' and '.join(told)}.")
    if not purged:
        # A promise not kept yet is not mere talk: it is said to scripts too.
        print_text(
            "Another program is still reading the database, so parts of the text are still in its files; "
            "they are wiped by the next `edgecloud cache forget` or `clear` after it has ended."
        )
