"""Whether what looks like a number of somebody's is one: check digits, and what is made for examples."""

from __future__ import annotations

import re


def is_card(text: str) -> bool:
    """Whether digits pass Luhn's check, as every payment card's do."""
    digits = [int(character) for character in text if character.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = [
        digit if index % 2 == 0 else digit * 2 - 9 * (digit > 4) for index, digit in enumerate(digits[::-1])
    ]
    return sum(doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """Whether a bank account number has the remainder 1 by 97 (ISO 13616)."""
    compact = re.sub(r"\s", "", text).upper()
    return int("".join(str(int(one, 36)) for one in compact[4:] + compact[:4])) % 97 == 1


def is_chinese_id(text: str) -> bool:
    """Whether the last character of an 18-digit identity number is its check (GB 11643)."""
    weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
    total = sum(int(digit) * weight for digit, weight in zip(text[:17], weights, strict=True))
    return "10X98765432"[total % 11] == text[17].upper()


def is_public_address(text: str) -> bool:
    """Whether an IPv4 address belongs to somebody: not loopback, private, or made for examples."""
    parts = [int(part) for part in text.split(".")]
    if any(part > 255 for part in parts) or parts[0] in (0, 10, 127) or parts[0] >= 224:
        return False
    reserved = {(192, 168), (169, 254), (192, 0), (198, 51), (203, 0)}
    well_known = {"1.1.1.1", "8.8.8.8", "8.8.4.4", "9.9.9.9", "1.2.3.4"}
    is_private = tuple(parts[:2]) in reserved or (parts[0] == 172 and 16 <= parts[1] < 32)
    return not is_private and text not in well_known


def is_mailbox(text: str) -> bool:
    """Whether an email address may be somebody's: not one made for examples or for machines."""
    user, _, domain = text.lower().rpartition("@")
    return user not in ("git", "noreply", "no-reply") and not re.fullmatch(
        r"(?:.*\.)?(?:example\.(?:com|org|net)|example|test|invalid|localhost)", domain
    )


def has_digit_and_letter(text: str) -> bool:
    """Whether it is more than digits or more than letters: `12:34:56:78:90:12` is a table of numbers."""
    return any(one.isdigit() for one in text) and any(one.isalpha() for one in text)
