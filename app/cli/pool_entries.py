"""The servers that this machine uses: `edgecloud pool list`, `add`, `rm` and `reprice`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from edgecloud.errors import BadRequest, NotFound, UpstreamError
from edgecloud.units import money

from . import offers
from .shell import Decimal, State, Whole, complain, note, print_json, print_table, print_text, warn

if TYPE_CHECKING:
    from edgecloud.settings import PoolEntry, Settings

AS_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.command("list")
@AS_JSON
@click.pass_obj
def list_(state: State, as_json: bool) -> None:
    """List the servers: model, address, prices, and what was learnt of them."""
    settings = state.settings()
    learnt = state.ledger().engines() if settings.pool else {}
    rows = [_facts(entry, learnt.get(entry.name, (0.0, {}))[1]) for entry in settings.pool]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say_none()
    print_table(
        [
            (
                row["name"],
                row["model"],
                " ".join(row["urls"]),
                "this machine" if row["local"] else row["region"] or "elsewhere",
                _price(row["price_in"], row["price_out"], row["currency"]),
                f"{row['context']:,} tokens" if row["context"] else "",
                "goes on" if row["continues"] else "",
                f"{row['tokens_per_s']:.0f} tokens/s" if row["tokens_per_s"] else "",
                row["resting"],
            )
            for row in rows
        ]
    )


@click.command()
@click.argument("name")
@click.argument("url")
@click.option("--model", help="The model's name over there; without it, the only one it lists.")
@click.option(
    "--key",
    metavar="env:NAME|keyring:NAME|-",
    help="Its API key: from a variable, from the keyring, or - to be asked for it.",
)
@click.option("--price-in", type=Decimal(0), help="Money for a million prompt tokens.")
@click.option("--price-out", type=Decimal(0), help="Money for a million answered tokens.")
@click.option("--price-cached", type=Decimal(0), help="Money for a million cached prompt tokens.")
@click.option("--currency", help="Of the prices.  [default: USD]")
@click.option("--region", help="Where it computes.")
@click.option("--replica", "replicas", multiple=True, metavar="URL", help="One more address (repeatable).")
@click.option("--context", type=Whole(1), help="Tokens of context, if it does not tell.")
@click.option(
    "--continues", is_flag=True, help="It goes on with a message that was begun, and may not say so."
)
@click.option("--local", is_flag=True, help="It computes on this machine (an ssh tunnel does not).")
@click.pass_obj
def add(
    state: State,
    /,
    name: str,
    url: str,
    model: str | None,
    key: str | None,
    replicas: tuple[str, ...],
    **rest: Any,
) -> None:
    """Add the OpenAI-compatible server at URL under NAME.

    \b
    edgecloud pool add gpu-box http://gpu-box:8000/v1
    edgecloud pool add big https://api.example.com/v1 --model big-1 --key env:BIG_KEY \\
        --price-in 0.5 --price-out 2
    """
    from edgecloud.config.editing import pool_entry, rewrite

    from .pool_findings import uncounted

    settings = state.settings(may_be_new=True)
    _check_name(name, settings)
    fields: dict[str, Any] = {"name": name, "url": url, "model": model or ""}
    if key is not None:
        fields["api_key"] = _stored(name, key)
    fields |= {option: value for option, value in rest.items() if value not in (None, False)}
    if replicas:
        fields["replicas"] = [{"url": replica} for replica in replicas]
    entry = pool_entry(fields)
    if "currency" in fields:
        fields["currency"] = entry.currency
    if model is None:
        fields["model"] = _only_model(entry, settings)

    def change(document: Any) -> None:
        if document.get("pool"):
            document["pool"].append(fields)
        else:
            document["pool"] = [fields]

    rewrite(change)
    print_text(_added(fields, found=model is None))
    if (why := uncounted(entry, settings.budget)) is not None:
        warn(why)
    note(f"Try it: edgecloud pool test {name}")


@click.command()
@click.argument("name", shell_complete=offers.pools)
@click.pass_obj
def rm(state: State, name: str) -> None:
    """Remove the server NAME from the settings."""
    from edgecloud.config.editing import rewrite

    entry_named(state.settings(), name)

    def change(document: Any) -> None:
        entries = document.get("pool", [])
        for place, entry in enumerate(entries):
            if entry.get("name") == name:
                del entries[place]
                if not entries:
                    del document["pool"]
                return
        raise NotFound(f"{name} is not in the settings file: it comes from the variable EDGECLOUD_POOL.")

    rewrite(change)
    note(f"Removed {name}.")


@click.command()
@click.argument("name", shell_complete=offers.pools)
@click.option("--days", type=Whole(1), help="How far back.  [default: this month]")
@click.pass_obj
def reprice(state: State, name: str, days: int | None) -> None:
    """Count what NAME answered at the prices that it has now, where they were wrong before."""
    import time

    from ...router.budgets import limits_of
    from ..upstreams import billed_price

    settings = state.settings()
    entry = entry_named(settings, name)
    now = time.time()
    (month,) = (
        limit.starts_at
        for limit in limits_of(settings.budget, now, chat_id=None, tenant=None)
        if limit.name == "per_month"
    )
    since = (month or 0.0) if days is None else now - days * 86400.0
    difference = state.ledger().reprice(name, billed_price(entry, settings.budget), since)
    if not difference:
        print_text(f"What {name} answered costs what was counted.")
        return
    amount = f"{money(abs(difference) / 1e9)} {settings.budget.currency}"
    print_text(
        f"What {name} answered costs {amount} {'more' if difference > 0 else 'less'} than was counted."
    )


def say_none() -> None:
    """Say that there are no servers, and how there would be: on stderr, a list of none is empty."""
    complain("There are no pools yet: `edgecloud pool add NAME URL` adds one.", 0)


def addresses_of(entry: PoolEntry) -> list[str]:
    """Host and port of each of its addresses, in the order of the config."""
    from urllib.parse import urlsplit

    return [urlsplit(url).netloc or url for url in (entry.url, *(each.url for each in entry.replicas))]


def entry_named(settings: Settings, name: str) -> PoolEntry:
    """The server of that name. Raises `NotFound`."""
    for entry in settings.pool:
        if entry.name == name:
            return entry
    known = ", ".join(entry.name for entry in settings.pool) or "none"
    raise NotFound(f"There is no server {name[:80]!r} (known: {known}); `edgecloud pool add` adds one.")


def _facts(entry: PoolEntry, learnt: Any) -> dict[str, Any]:
    """What the config says, and what was learnt by using it."""
    decode = sorted(learnt.get("speed", {}).get("decode", []))
    resting = [kept["reason"] for kept in learnt.get("breakers", {}).values()]
    return {
        "name": entry.name,
        "model": entry.model,
        "urls": [entry.url, *(replica.url for replica in entry.replicas)],
        "local": entry.local,
        "region": entry.region,
        "price_in": entry.price_in,
        "price_out": entry.price_out,
        "currency": entry.currency,
        "context": entry.context or learnt.get("context", 0),
        "continues": entry.may_continue,
        "tokens_per_s": decode[len(decode) // 2] if decode else 0.0,
        "resting": resting[0] if resting else "",
    }


def _price(price_in: float, price_out: float, currency: str) -> str:
    """Money for a million tokens, in and out."""
    return f"{money(price_in)} / {money(price_out)} {currency}" if price_in or price_out else "free"


def _added(fields: dict[str, Any], *, found: bool) -> str:
    """What was taken: the model (`found` where the server told it), the addresses, the price."""
    where = ", ".join([fields["url"], *(each["url"] for each in fields.get("replicas", ()))])
    price = _price(fields.get("price_in", 0), fields.get("price_out", 0), fields.get("currency", "USD"))
    per = "" if price == "free" else " for a million tokens in / out"
    model = fields["model"]
    told = f"{model}, the one model that it lists" if found else f"{model}, as you say: it was not asked"
    return f"Added {fields['name']} at {where} ({price}{per}), with the model {told}."


def _check_name(name: str, settings: Settings) -> None:
    """Raises `BadRequest` for a name that a server can't have, or that is taken."""
    from edgecloud.models import list_models
    from edgecloud.pool_names import objection

    why = objection(name, settings.aliases, settings.extra_models)
    known = [entry.name for entry in settings.pool]
    known += [] if why else [model.name for model in list_models(settings)]
    if why is None and name.casefold() in map(str.casefold, known):
        why = "is taken"
    if why is not None:
        raise BadRequest(f"The name {name[:80]!r} {why}: give the server another.")


def _stored(name: str, key: str) -> str:
    """The key as the settings file has it; one that is typed goes to the keyring where there is one."""
    if key != "-":
        if not key.startswith(("env:", "keyring:")):
            raise BadRequest(
                "A key on the command line stays in the shell's history: use --key env:NAME, "
                "--key keyring:NAME or --key -."
            )
        return key
    typed: str = click.prompt("API key", hide_input=True, err=True)
    try:
        import keyring

        keyring.set_password("edgecloud", name, typed)
        return f"keyring:{name}"
    except Exception:  # no keyring package, no keyring service, or one that is locked
        note("There is no system keyring: the key goes into the settings file, which only you can read.")
        return typed


def _only_model(entry: PoolEntry, settings: Settings) -> str:
    """The one model that the server lists. Raises `BadRequest` if that leaves a choice."""
    import asyncio

    try:
        models = asyncio.run(_models(entry, settings))
    except UpstreamError as error:
        raise UpstreamError(
            f"{error.message} Nothing was added: if it is still starting, try again in a while; --model adds "
            "it unasked.",
            upstream_status=error.upstream_status,
        ) from error
    if len(models) == 1:
        return models[0]
    more = f", and {len(models) - 12} more" if len(models) > 12 else ""
    known = (", ".join(models[:12]) or "none") + more
    raise BadRequest(f"Say which model with --model; the server lists: {known}.")


async def _models(entry: PoolEntry, settings: Settings) -> list[str]:
    from ...pool.client import RemoteEngine

    engine = RemoteEngine(entry, settings)
    try:
        return await engine.models()
    finally:
        await engine.aclose()
