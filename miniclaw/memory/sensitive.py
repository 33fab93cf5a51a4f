"""What a program can see of how sensitive a text is; a model's own word for it is not enough.

Errs on the side of caution: a word that is found here only means that a person is asked first.
"""

from __future__ import annotations

import re

__all__ = ["is_secret", "is_sensitive"]

_SECRET = re.compile(
    r"密码|口令|验证码|私钥|密钥|助记词|\bpass(?:word|code|phrase)s?\b|\bpin(?: code| number)? is\b|\bapi[ _-]?keys?\b"
    r"|\bprivate keys?\b|\b(?:sk|pk|ghp|gho|xox[abp]|AKIA|eyJ)[-_A-Za-z0-9]{14,}",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"(?<!\w)(?:\d{17}[\dXx]|\d{15}|\d{3}-\d{2}-\d{4}|[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?)(?!\w)"
)
"""Identity numbers of China and the United States, and the form of an IBAN."""
_CARD = re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)")
_WORDS = re.compile(
    r"身份证|护照|社保号|医保号|银行卡|信用卡|储蓄卡|卡号|账号|病|癌|瘤|肝炎|乙肝|艾滋|抑郁|焦虑症|双相|自闭|怀孕|流产|过敏|手术|"
    r"确诊|服药|吃药|化疗|血糖|血压|残疾|阳性|宗教|信教|基督徒|穆斯林|佛教徒|党员|工资|薪水|月薪|年薪|存款|欠债|负债"
    r"|\b(?:passport|social security|ssn|iban|bank account|(?:credit|debit|bank) card|salary|debts?|religio\w+|muslim|christian|"
    r"hiv|aids|cancer|tumou?rs?|diabet\w+|hepatitis|depress\w+|bipolar|schizo\w+|autis\w+|pregnan\w+|miscarriage|abortion|"
    r"allerg\w+|asthma|epilep\w+|surgery|chemotherapy|diagnos\w+|disease|disorder|illness|disab\w+|medication|antidepressants?)\b",
    re.IGNORECASE,
)


def is_secret(text: str) -> bool:
    """Whether it seems to hold a password or a key."""
    return _SECRET.search(text) is not None


def is_sensitive(text: str) -> bool:
    """Whether it seems to tell of health, faith, money, or a number of a card or an identity."""
    has_card = any(_fits_luhn(re.sub(r"\D", "", found)) for found in _CARD.findall(text))
    return has_card or any(pattern.search(text) for pattern in (_SECRET, _NUMBER, _WORDS))


def _fits_luhn(digits: str) -> bool:
    """The check digit of ISO/IEC 7812, which all bank cards have."""
    total = 0
    for place, digit in enumerate(map(int, reversed(digits))):
        total += digit if place % 2 == 0 else sum(divmod(2 * digit, 10))
    return total % 10 == 0
