from headrace.demo.fake_engine.prefix_cache import PrefixCache, count_tokens

TURN_1 = "a" * 400
TURN_2 = TURN_1 + "b" * 400


def test_the_first_prompt_of_a_session_hits_nothing():
    assert PrefixCache(10_000).lookup("session", TURN_1) == 0


def test_the_next_turn_hits_the_turns_before_it_in_whole_blocks():
    cache = PrefixCache(10_000)
    cache.lookup("session", TURN_1)
    assert cache.lookup("session", TURN_2) == 96


def test_the_same_prompt_again_still_computes_its_last_token():
    cache = PrefixCache(10_000)
    prompt = "a" * (16 * 4)
    cache.lookup("session", prompt)
    assert cache.lookup("session", prompt) == 0


def test_a_prompt_that_differs_early_hits_only_the_common_part():
    cache = PrefixCache(10_000)
    cache.lookup("session", TURN_1)
    assert cache.lookup("session", "a" * 200 + "c" * 200) == 48


def test_sessions_do_not_share():
    cache = PrefixCache(10_000)
    cache.lookup("one", TURN_1)
    assert cache.lookup("two", TURN_1) == 0


def test_the_least_recently_used_session_goes_when_tokens_run_out():
    cache = PrefixCache(250)
    cache.lookup("old", TURN_1)
    cache.lookup("used", TURN_1)
    cache.lookup("old", TURN_1)
    cache.lookup("new", TURN_1)
    assert cache.lookup("old", TURN_1) > 0
    assert cache.lookup("used", TURN_1) == 0


def test_a_prompt_larger_than_the_cache_is_not_kept():
    cache = PrefixCache(50)
    cache.lookup("session", TURN_1)
    assert len(cache) == 0


def test_tokens_are_four_characters_and_at_least_one():
    assert [count_tokens("a" * length) for length in (0, 1, 4, 5)] == [1, 1, 1, 2]
