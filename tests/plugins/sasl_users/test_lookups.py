"""Known and unknown names cannot be told apart by what they are answered with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from headrace.plugins.sasl_users.lookups import DEFAULT_ITERATIONS, SALT_BYTES, KnownUsers
from headrace.proxy.sasl.scram import ScramMechanism
from tests.plugins.sasl_users.user_files import verifiers

if TYPE_CHECKING:
    import random

KEY = bytes(range(32))
SHA_256, SHA_512 = ScramMechanism
ALICE = verifiers("alice's")
NAMES = st.text(min_size=1)


def test_a_known_name_has_its_verifiers() -> None:
    known = KnownUsers({"alice": ALICE, "bob": {SHA_512: ALICE[SHA_512]}}, KEY)
    assert len(known) == 2
    assert known.scram_verifier(SHA_512, "alice") is ALICE[SHA_512]
    assert known.plain_verifier("alice") == (SHA_256, ALICE[SHA_256])
    assert known.plain_verifier("bob") == (SHA_512, ALICE[SHA_512])


@given(name=NAMES.filter(lambda name: name != "alice"), mechanism=st.sampled_from(ScramMechanism))
def test_an_unknown_name_gets_the_same_verifier_each_time_which_looks_like_a_known_one(
    name: str, mechanism: ScramMechanism
) -> None:
    found = KnownUsers({"alice": ALICE}, KEY).scram_verifier(mechanism, name)
    assert found == KnownUsers({"alice": ALICE, "carol": ALICE}, KEY).scram_verifier(mechanism, name)
    assert found != KnownUsers({"alice": ALICE}, bytes(32)).scram_verifier(mechanism, name)
    real = ALICE[mechanism]
    assert (len(found.salt), found.iterations) == (len(real.salt), real.iterations)
    assert len(found.stored_key) == len(found.server_key) == mechanism.digest_bytes
    assert found.stored_key != found.server_key


def test_a_user_without_the_mechanism_is_like_an_unknown_one() -> None:
    with_one = KnownUsers({"bob": {SHA_256: ALICE[SHA_256]}}, KEY)
    without = KnownUsers({"alice": {SHA_256: ALICE[SHA_256]}}, KEY)
    assert with_one.scram_verifier(SHA_512, "bob") == without.scram_verifier(SHA_512, "bob")


def test_without_users_the_default_is_demanded() -> None:
    known = KnownUsers({}, KEY)
    assert known.scram_verifier(SHA_512, "anybody").iterations == DEFAULT_ITERATIONS
    mechanism, verifier = known.plain_verifier("anybody")
    assert (mechanism, verifier.iterations, len(verifier.salt)) == (SHA_256, DEFAULT_ITERATIONS, SALT_BYTES)


def test_unknown_names_demand_the_iterations_that_users_have_and_keep_them(rng: random.Random) -> None:
    """When a further number of iterations is in use, an unknown name keeps its own or gets the new one."""
    names = [f"name-{rng.getrandbits(40)}" for _ in range(200)]

    def demanded(*iterations: int) -> list[int]:
        users = {str(each): verifiers("x", iterations=each) for each in iterations}
        known = KnownUsers(users, KEY)
        assert {known.plain_verifier(name)[1].iterations for name in names} == set(iterations)
        return [known.scram_verifier(SHA_256, name).iterations for name in names]

    two, three = demanded(4096, 8192), demanded(4096, 8192, 16384)
    assert 40 < two.count(8192) < 160
    assert all(new in (old, 16384) for old, new in zip(two, three, strict=True))
    assert two == demanded(4096, 8192)


def test_a_thousand_different_numbers_of_iterations_do_not_make_look_ups_slow() -> None:
    users = {str(each): {SHA_256: replace(ALICE[SHA_256], iterations=4096 + each)} for each in range(1000)}
    known = KnownUsers(users, KEY)
    assert len({known.scram_verifier(SHA_256, f"unknown-{each}").iterations for each in range(1000)}) == 16
