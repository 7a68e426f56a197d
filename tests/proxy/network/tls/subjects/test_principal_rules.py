"""Mapping rules beside Kafka's ``SslPrincipalMapper``: the same user, no matching rule, or a refused rule."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.proxy.network.tls.subjects.mapping_patterns import Pattern, StepBudget
from headrace.proxy.network.tls.subjects.principals import (
    MAX_RULES,
    REMEMBERED_SUBJECTS,
    NoMatchingRule,
    NoPrincipal,
    PrincipalRules,
)
from headrace.quota_callbacks.identities import MAX_PRINCIPAL_CHARACTERS
from testbed.kafka.jvm import kafka_classes, start_jvm

VERSION = "4.3.1"
MAPPER = "org.apache.kafka.common.security.ssl.SslPrincipalMapper"


def java_rules(text: str) -> Any:
    return kafka_classes(VERSION).cls(MAPPER).fromRules(text)


def java_user(rules: Any, name: str) -> str | None:
    """Kafka's user of this name; ``None`` if no rule matches."""
    try:
        return str(rules.getName(name))
    except kafka_classes(VERSION).cls(f"{MAPPER}$NoMatchingRule"):
        return None


def user(rules: PrincipalRules, name: str) -> str | None:
    try:
        return rules.principal(name)
    except NoMatchingRule:
        return None


def java_refuses(text: str) -> bool:
    try:
        java_rules(text)
    except start_jvm().java.lang.IllegalArgumentException:
        return True
    return False


def ours_or_reason(text: str) -> PrincipalRules | str:
    try:
        return PrincipalRules(text)
    except ValueError as refusal:
        return str(refusal)


DUKE = "CN=duke,OU=ServiceUsers,O=Organization,L=City,ST=State,C=DE"
NAMES = (
    *(DUKE, "CN=duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "cn=Duke,ou=x", "CN=a\\,b,O=c", "CN=Łukasz,O=Straße", ""),
    *(
        "CN=a",
        "CN=a,CN=b",
        "O=x,CN=kafka.1",
        "aaa",
        "CN=İstanbul ΑΣ ΑΣ.",
        "CN=x\ny",
        "1.2.840.113549.1.9.1=#1603614062",
    ),
)
EVERY_ATTRIBUTE = "^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$"
EXAMPLES = (
    f"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:{EVERY_ATTRIBUTE}/$1@$2/L, "
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L, DEFAULT"
)
"""As in Kafka's documentation."""
RULES = (
    EXAMPLES,
    "DEFAULT",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT",
    f"RULE:{EVERY_ATTRIBUTE}/$1@$2/U",
    "RULE:^CN=(.*?)(,.*)?$/$1/L",
    "RULE:^CN=(.*?)(,.*)?$/$1/U",
    "RULE:^CN=((?:\\\\.|[^,])*).*$/$1/,DEFAULT",
    "RULE:.*/x/",
    "RULE:.*?/x/",
    "RULE:a|aaa/<$0>/,DEFAULT",
    "RULE:^(.*)$/$1$1/",
    "RULE:^(CN=)(.*)$/$2$3/,RULE:(.)*/$1/",
    "RULE:^(CN)=(.*)$/$10-$01-$22-$/".replace("$/", "\\$/"),
    "RULE:^(.*)$/\\$1\\/\\a/",
    "RULE:(?i)^cn=(?<name>[^,]*).*$/${name}-$1-${name}/L",
    "RULE:^(?:(CN)|(O))=.*$/$1$2/",
    "RULE:^CN=(a)?.*$//L,DEFAULT",
    "RULE:/nothing/,DEFAULT",
    "RULE:^CN=(.),(.*)$/$1, $2 \\, x/U , DEFAULT",
    "  RULE:^CN=([^,]*),OU=x\\/y$/$1/ ,\n\t RULE:^CN=([^,]*),.*$/$1/L,\n DEFAULT \n",
    ",,DEFAULT,",
    "DEFAULT,RULE:a/b/",
)


def test_the_users_are_those_of_kafka() -> None:
    seen = set()
    for text in RULES:
        ours, java = PrincipalRules(text), java_rules(text)
        for name in NAMES:
            expected = java_user(java, name)
            assert user(ours, name) == expected, (text, name)
            seen.add(expected)
    assert {None, "", "duke", "duke@sme", "DUKE@SME", "xx", DUKE} <= seen


def test_users_of_the_rules_that_kafka_documents() -> None:
    rules = PrincipalRules(EXAMPLES)
    assert rules.principal(DUKE) == "duke"
    assert rules.principal("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US") == "duke@sme"
    assert rules.principal("O=Other,cn=Kafka.1,C=US") == "kafka.1"
    assert rules.principal("O=Other") == "O=Other"


def test_no_rule_matches() -> None:
    rules = PrincipalRules("RULE:^CN=([a-z]+)$/$1/")
    with pytest.raises(NoMatchingRule, match="no mapping rule matches the subject 'CN=\\\\x1b9'") as found:
        rules.principal("CN=\x1b9")
    assert found.value.side == "client"


REFUSED_BY_KAFKA = {
    "DEFAULTS": r"rule 1, 'DEFAULTS', is neither DEFAULT nor RULE:pattern/replacement/",
    "DEFAULT,default": r"rule 2, 'default', is neither DEFAULT nor",
    "RULE:a/b": r"rule 1, 'RULE:a/b', is neither DEFAULT nor",
    "RULE:a/b/l": r"rule 1, 'RULE:a/b/l', is neither",
    "RULE:a/b/LU": r"rule 1, 'RULE:a/b/LU', is neither",
    "RULE:a/b/c/": r"rule 1, 'RULE:a/b/c/', is neither",
    "RULE:a": r"rule 1, 'RULE:a', is neither",
    "DEFAULT DEFAULT": r"rule 1, 'DEFAULT DEFAULT', is neither",
    "RULE:^CN=(.*$/$1/": r"rule 1, 'RULE:\^CN=\(.\*\$/\$1/': a group that is not closed, at character 9 of the pattern",
    "RULE:[/$1/": r"rule 1, 'RULE:\[/\$1/': a class that is not closed",
}
FAILING_WITH_KAFKA = {
    "RULE:.*/$1/": r"rule 1, 'RULE:\.\*/\$1/': the replacement refers to group 1, and the pattern has 0",
    "RULE:(.*)/$4$5/": "the replacement refers to group 5, and the pattern has 1",
    "RULE:(.*)/\\$4/": "the replacement refers to group 4, and the pattern has 1",
    "RULE:(.*)/${name}/": "the replacement refers to a group 'name', which the pattern does not have",
    "RULE:(.*)/${name/": "the replacement refers to a group '', which the pattern does not have",
    "RULE:(.*)/$/": r"the replacement has a \$ without a group; a literal one is \\\$",
    "RULE:(.*)/$a/": r"the replacement has a \$ without a group",
    "RULE:(.*)/$99999999999/": r"the reference \$99999999999, which is too large",
    "RULE:(.*)/$2147483648/": r"the reference \$2147483648, which is too large",
}
"""Rules that Kafka reads, with which it ends the connection of each client."""
REFUSED_BY_US = {
    "": "no rule; without rewriting it is DEFAULT",
    " , ,": "no rule",
    "RULE:(?=CN)(.*)/$1/": "lookahead, lookbehind and atomic groups are not supported, at character 2 of the pattern",
    "foo\nDEFAULT": "invalid rule 'foo': a line ends without a comma",
    ",".join(["DEFAULT"] * (MAX_RULES + 1)): f"{MAX_RULES + 1} rules; the most is {MAX_RULES}",
}


def test_what_kafka_refuses_is_refused() -> None:
    for text, reason in REFUSED_BY_KAFKA.items():
        with pytest.raises(ValueError, match=reason):
            PrincipalRules(text)
        assert java_refuses(text)


def test_rules_with_which_every_client_would_fail_are_refused() -> None:
    for text, reason in FAILING_WITH_KAFKA.items():
        with pytest.raises(ValueError, match=reason):
            PrincipalRules(text)
        rules = java_rules(text)
        with pytest.raises(start_jvm().java.lang.RuntimeException):
            rules.getName("CN=a")


def test_what_is_refused_although_kafka_reads_it() -> None:
    for text, reason in REFUSED_BY_US.items():
        with pytest.raises(ValueError, match=reason):
            PrincipalRules(text)
        assert not java_refuses(text)


patterns = st.sampled_from(
    [".*", "^(.*)$", "CN=(.*?)", "CN=(.*?),(.*)", "(.)*", "a|b", "(a)|(b)", "(?<n>.)(.*)", "\\/", ""]
)
replacements = st.lists(
    st.sampled_from(["$0", "$1", "$2", "$3", "$12", "$0123", "${n}", "\\", "\\$", "\\/", "x", "@", ",", " "]),
    max_size=4,
).map("".join)
rules = st.builds("RULE:{}/{}/{}".format, patterns, replacements, st.sampled_from(["", "L", "U", " "]))
separators = st.sampled_from([",", ", ", " ,", ",,", "\n,", ""])
rule_texts = st.lists(
    st.tuples(rules | st.just("DEFAULT") | st.text("RULE:/,DFA $\\", max_size=5), separators), max_size=4
)
names = st.text(st.sampled_from("CN=ab,/ßİΣ"), max_size=8)


@given(rule_texts.map(lambda parts: "".join(map("".join, parts))), st.lists(names, min_size=1, max_size=4))
def test_random_rules_are_those_of_kafka(text: str, samples: list[str]) -> None:
    ours = ours_or_reason(text)
    if isinstance(ours, str):
        # Without a rule, Kafka ends every connection; with such a replacement, that of each client that matches.
        assert java_refuses(text) or "no rule" in ours or "not supported" in ours or "the replacement" in ours, text
        return
    java = java_rules(text)
    for name in samples:
        assert user(ours, name) == java_user(java, name), name


OLD_LETTERS = "".join(
    letter for letter in map(chr, range(0x3000)) if letter != "Σ" and unicodedata.ucd_3_2_0.category(letter) != "Cn"
)
"""Letters whose case does not depend on the versions of Unicode, and not on the letters around."""


@given(st.text(st.sampled_from(OLD_LETTERS), max_size=20) | st.text(st.sampled_from("ΑασςßİıŉǅéÉ \u0307'"), max_size=8))
def test_letters_change_case_as_in_java(name: str) -> None:
    for flag in "LU":
        text = f"RULE:[^\\x00]*/<$0>/{flag},DEFAULT"
        assert user(PrincipalRules(text), name) == java_user(java_rules(text), name)


def test_long_names_are_refused() -> None:
    longest = "a" * MAX_PRINCIPAL_CHARACTERS
    assert PrincipalRules("DEFAULT").principal(longest) == longest
    with pytest.raises(NoPrincipal, match="subject of the certificate has 1025 characters; the most is 1024"):
        PrincipalRules("DEFAULT").principal(longest + "a")
    with pytest.raises(NoPrincipal, match="the user by mapping rule 2 has 2048 characters"):
        PrincipalRules("RULE:b/b/,RULE:^.*$/$0$0/").principal(longest)


def test_a_rule_that_takes_too_long_is_given_up() -> None:
    rules = PrincipalRules("RULE:b/b/,RULE:=a=.*X|=a|(?:=a)+/$0/")
    with pytest.raises(
        NoPrincipal, match=r"the mapping rules take too long for the subject '=a=a.*more than 50000 steps"
    ):
        rules.principal("=a" * (MAX_PRINCIPAL_CHARACTERS // 2))


def test_rules_are_applied_once_to_each_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = PrincipalRules("RULE:CN=([a-z]+)/$1/")
    applied = []
    matches = Pattern.matches

    def noted(pattern: Pattern, text: str, budget: StepBudget) -> bool:
        applied.append(text)
        return matches(pattern, text, budget)

    monkeypatch.setattr(Pattern, "matches", noted)
    for begins in (True, False, False):
        assert rules.takes_long("CN=alice") is begins
        assert rules.principal("CN=alice") == "alice"
        with pytest.raises(NoMatchingRule, match="no mapping rule matches the subject 'CN=BOB'"):
            rules.principal("CN=BOB")
    assert applied == ["CN=alice", "CN=BOB"]
    assert not PrincipalRules("DEFAULT").takes_long("CN=alice")
    for number in range(REMEMBERED_SUBJECTS):
        name = "CN=" + "".join("abcdefghij"[int(digit)] for digit in str(number))
        assert rules.takes_long(name)
        assert rules.principal(name) == name[3:]
    assert rules.takes_long("CN=alice")


def test_rules_show_their_text() -> None:
    assert repr(PrincipalRules("DEFAULT")) == "PrincipalRules('DEFAULT')"
