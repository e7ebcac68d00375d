"""Every rule of the policy file: what breaks it is refused with line, path, fault and what was expected."""

from __future__ import annotations

import re

import pytest

from headrace.policy import PolicyError, load

INTERACTIVE = "interactive: {priority: 100, "
SPOT = "spot: {model: llama-70b, region: us-west, "
T0 = "t0_ms: 24"
REPORTS = "security: {reports: {cert: {file: a}, key: {file: b}, "

# name: (edits of the base policy, text appended, the message after "policy.yaml:")
CASES: dict[str, tuple[list[tuple[str, str]], str, str]] = {
    # shape
    "unknown top-level key": (
        [],
        "engine: {}\n",
        "53: engine: unknown key (did you mean `engines`?); expected one of classes, defaults, deny",
    ),
    "unknown key": (
        [(T0, "t0_mss: 24")],
        "",
        "31: profiles.h100.t0_mss: unknown key (did you mean `t0_ms`?); expected one of capacity_rps, fit",
    ),
    "unknown key in a list": (
        [],
        "deny: [{engin: spot}]\n",
        "53: deny[0].engin: unknown key (did you mean `engine`?); expected one of class, engine, frontend",
    ),
    "missing key": (
        [(T0, "prefill_share: 0.4")],
        "",
        "30: profiles.h100.t0_ms: is required but missing; expected a value",
    ),
    "missing section": ([("fleet: prod\n", "")], "", "fleet: is required but missing; expected a value"),
    "other version": ([("version: 1", "version: 2")], "", "1: version: is the number 2; expected 1"),
    "text for a number": (
        [(T0, "t0_ms: fast")],
        "",
        "31: profiles.h100.t0_ms: is the text 'fast'; expected a number",
    ),
    "number for text": (
        [("fleet: prod", "fleet: 7")],
        "",
        "2: fleet: is the number 7; expected text (in quotes",
    ),
    "boolean for a number": (
        [(T0, "t0_ms: true")],
        "",
        "31: profiles.h100.t0_ms: is the boolean true; expected a number",
    ),
    "text for a boolean": (
        [("trust_headers: false", 'trust_headers: "no"')],
        "",
        "13: listeners.public.trust_headers: is the text 'no'; expected true or false",
    ),
    "fraction for an integer": (
        [("priority: 100", "priority: 1.5")],
        "",
        "16: classes.interactive.priority: is the number 1.5; expected an integer",
    ),
    "scalar for a list": (
        [("[meta-llama/Llama-3.3-70B-Instruct]", "meta-llama/Llama-3.3-70B-Instruct")],
        "",
        "21: models.llama-70b.served_as: is the text 'meta-llama/Llama-3.3-70B-Instruct'; expected a list",
    ),
    "list for a map": ([("  lab: {}\n", "  lab: []\n")], "", "8: regions.lab: is a list; expected a map"),
    "empty section": (
        [("  us-east: {region: us-east}\n  eu-west: {region: eu-west, residency: [eu]}\n", "  {}\n")],
        "",
        "9: frontends: has 0 entries; expected at least 1",
    ),
    "no value": ([("fleet: prod", "fleet:")], "", "2: fleet: has no value; expected a value, or no such key"),
    "unknown word": (
        [(SPOT, SPOT + "state: offf, ")],
        "",
        "43: engines.spot.state: is the text 'offf'; expected active, drain or off",
    ),
    # numbers
    "negative number": (
        [(T0, "t0_ms: -24")],
        "",
        "31: profiles.h100.t0_ms: is the number -24; expected a number of at least 0",
    ),
    "NaN": (
        [(T0, "t0_ms: .nan")],
        "",
        "31: profiles.h100.t0_ms: is the number nan; expected a finite number",
    ),
    "infinity": (
        [(T0, "t0_ms: .inf")],
        "",
        "31: profiles.h100.t0_ms: is the number inf; expected a finite number",
    ),
    "absurd number": (
        [(T0, "t0_ms: 24000000000")],
        "",
        "31: profiles.h100.t0_ms: is the number 24000000000; expected a number of at most 1",
    ),
    "very long number": (
        [(T0, "t0_ms: " + "9" * 400)],
        "",
        "31: profiles.h100.t0_ms: is the number inf; expected a finite number",
    ),
    "zero capacity": (
        [("capacity_rps: 4.6", "capacity_rps: 0")],
        "",
        "33: profiles.h100.capacity_rps: is the number 0; expected a number above 0",
    ),
    "share above one": (
        [("max_share: 0.5", "max_share: 1.5")],
        "",
        "43: engines.spot.max_share: is the number 1.5; expected a number of at most 1",
    ),
    "port out of range": (
        [("port: 8443", "port: 84430")],
        "",
        "13: listeners.public.port: is the number 84430; expected a number of at most 65535",
    ),
    "number that YAML reads as text": (
        [(T0, "t0_ms: 2e1")],
        "",
        "31: profiles.h100.t0_ms: is the text '2e1'; expected a number (YAML reads this notation as "
        "text: write it out",
    ),
    "neither number nor auto": (
        [],
        "planning: {max_utilization: much}\n",
        "53: planning.max_utilization: is the text 'much'; expected a number from 0.05 to 1, or auto",
    ),
    "round trip below zero": (
        [("us-west: 62", "us-west: -1")],
        "",
        "51: network.rtt_ms.us-east.us-west: is the number -1; expected a number of at least 0",
    ),
    # what YAML 1.1 reinterprets
    "name read as a boolean": (
        [("fleet: prod", "fleet: no")],
        "",
        "2: fleet: YAML reads `no` as a boolean; expected true, false",
    ),
    "name in a list read as a boolean": (
        [("residency: [eu]", "residency: [no]")],
        "",
        "11: frontends.eu-west.residency[0]: YAML reads `no` as a boolean",
    ),
    "yes for true": (
        [("trust_headers: false", "trust_headers: yes")],
        "",
        "13: listeners.public.trust_headers: YAML reads `yes` as a boolean; expected true",
    ),
    "key read as a boolean": (
        [("  lab: {}", "  no: {}")],
        "",
        '8: regions: YAML reads the name `no` as a boolean; expected "no" in quotes',
    ),
    "key read as a number": (
        [("  lab: {}", "  012: {}")],
        "",
        '8: regions: YAML reads the name `012` as a number; expected "012" in quotes',
    ),
    "octal number": (
        [("port: 8443", "port: 08443"), ("port: 08443", "port: 0443")],
        "",
        "13: listeners.public.port: YAML reads `0443` as a number in another notation",
    ),
    "sexagesimal number": (
        [("port: 8443", "port: 1:30")],
        "",
        "13: listeners.public.port: YAML reads `1:30` as a number in another notation",
    ),
    "hexadecimal number": (
        [("port: 8443", "port: 0x20")],
        "",
        "13: listeners.public.port: YAML reads `0x20` as a number in another notation",
    ),
    "grouped number": (
        [("port: 8443", "port: 8_443")],
        "",
        "13: listeners.public.port: YAML reads `8_443` as a number in another notation",
    ),
    "date": (
        [("fleet: prod", "fleet: 2026-01-01")],
        "",
        "2: fleet: YAML reads `2026-01-01` as a date; expected",
    ),
    "tag": (
        [("fleet: prod", "fleet: !!python/name:os.system ''")],
        "",
        "2: fleet: YAML reads `` as `tag:yaml.org,2002:python/name:os.system`",
    ),
    "tag on a map": (
        [("  lab: {}", "  lab: !thing {}")],
        "",
        "8: regions.lab: has the tag `!thing`; expected plain YAML without tags",
    ),
    "duplicate key": (
        [("revision: 4f2c1a9", "fleet: two")],
        "",
        "3: fleet: the key is already on line 2; expected each key once",
    ),
    "duplicate key in a map": (
        [(SPOT, SPOT + "model: llama-8b, ")],
        "",
        "43: engines.spot.model: the key is already on line 43; expected each key once",
    ),
    "alias": (
        [("fleet: prod", "fleet: &a prod"), ("revision: 4f2c1a9", "revision: *a")],
        "",
        "3: revision: anchors and aliases (`&`, `*`) are not accepted; expected `defaults` or the value",
    ),
    "merge key": (
        [(SPOT, "spot: {<<: {state: off}, model: llama-70b, region: us-west, ")],
        "",
        "43: engines.spot: `<<` merge keys are not accepted; expected `defaults`",
    ),
    "list as a key": (
        [("  lab: {}", "  [a, b]: {}")],
        "",
        "8: regions: a list or map is used as a key; expected a name",
    ),
    "syntax": ([("fleet: prod", "fleet: [")], "", "4: not valid YAML: "),
    "two documents": ([], "---\nversion: 1\n", "53: not valid YAML: but found another document"),
    "deep nesting": (
        [],
        "deny: " + "[" * 60 + "]" * 60 + "\n",
        "53: deny[0][0]: is nested more than 24 levels deep",
    ),
    # names
    "name with a dot": (
        [("  lab: {}", "  l.ab: {}"), ("region: lab", "region: l.ab")],
        "",
        "8: regions.l.ab: is the text 'l.ab'; expected a name of 1 to 64 letters",
    ),
    "reserved name": (
        [("  batch: {", "  shed: {")],
        "",
        "17: classes.shed: `shed` is a reserved name; expected another name",
    ),
    "reserved engine": (
        [("spot: {", "shed: {")],
        "",
        "43: engines.shed: `shed` is not a name for an engine; expected 1 to 64 letters",
    ),
    "model id with a space": (
        [("  llama-8b:", "  llama 8b:")],
        "",
        "24: models.llama 8b: is the text 'llama 8b'; expected a model id",
    ),
    "engine named twice by expansion": (
        [("eu-west-h100: {", "us-east-h100-02: {")],
        "",
        "41: engines.us-east-h100-{01..03}: `us-east-h100-02` is already named at",
    ),
    "braces that are no range": (
        [("{01..03}", "{a,b}")],
        "",
        "41: engines.us-east-h100-{a,b}: the name has braces that are not a range such as {01..04}",
    ),
    "range that counts down": (
        [("{01..03}", "{3..1}")],
        "",
        "41: engines.us-east-h100-{3..1}: the name counts down from 3 to 1; expected",
    ),
    "huge range": (
        [("{01..03}", "{0..999999999}")],
        "",
        "41: engines.us-east-h100-{0..999999999}: the name stands for more than 1000 names",
    ),
    "huge product": (
        [("{01..03}", "{01..99}-{01..99}")],
        "",
        "41: engines.us-east-h100-{01..99}-{01..99}: the name stands for more than 1000 names",
    ),
    "repeated name in a set": (
        [("requires: [tools]", "requires: [tools, tools]")],
        "",
        "23: models.llama-70b.requires: names 'tools' twice; expected each once",
    ),
    # dangling names
    "dangling region": (
        [("us-east: {region: us-east}", "us-east: {region: us-eats}")],
        "",
        "10: frontends.us-east.region: `us-eats` is not a region of this policy (did you mean "
        "`us-east`?); expected one of eu-west, lab, us-east, us-west",
    ),
    "dangling jurisdiction of a front-end": (
        [("residency: [eu]", "residency: [ue]")],
        "",
        "11: frontends.eu-west.residency: `ue` is not a jurisdiction of this policy; expected one of eu, us",
    ),
    "dangling jurisdiction of a class": (
        [(INTERACTIVE, INTERACTIVE + "residency: [mars], ")],
        "",
        "16: classes.interactive.residency: `mars` is not a jurisdiction",
    ),
    "dangling jurisdiction of a model": (
        [("requires: [tools]", "residency: [mars]")],
        "",
        "23: models.llama-70b.residency: `mars` is not a jurisdiction",
    ),
    "dangling default class": (
        [("default_class: interactive", "default_class: chat")],
        "",
        "13: listeners.public.default_class: `chat` is not a class of this policy; expected one of "
        "batch, interactive",
    ),
    "dangling match order": (
        [("match_order: [batch]", "match_order: [bulk]")],
        "",
        "18: match_order[0]: `bulk` is not a class",
    ),
    "dangling class of a model": (
        [("      interactive: {output_tokens: 120}", "      chat: {output_tokens: 120}")],
        "",
        "28: models.llama-8b.classes.chat: `chat` is not a class",
    ),
    "dangling model": (
        [("lab-a100: {model: llama-8b", "lab-a100: {model: llama-9b")],
        "",
        "47: engines.lab-a100.model: `llama-9b` is not a model of this policy (did you mean `llama-8b`?)",
    ),
    "dangling profile": (
        [("region: lab, profile: a100", "region: lab, profile: a10")],
        "",
        "47: engines.lab-a100.profile: `a10` is not a profile of this policy (did you mean `a100`?)",
    ),
    "dangling engine region": (
        [("region: lab,", "region: mars,")],
        "",
        "47: engines.lab-a100.region: `mars` is not a region",
    ),
    "dangling engine class": (
        [("classes: [batch]", "classes: [bulk]")],
        "",
        "43: engines.spot.classes: `bulk` is not a class",
    ),
    "dangling default engine class": (
        [("capabilities: [tools]", "classes: [bulk]")],
        "",
        "39: defaults.engine.classes: `bulk` is not a class",
    ),
    "dangling start of a round trip": (
        [("    eu-west: {us-west: 137", "    eu-wset: {us-west: 137")],
        "",
        "52: network.rtt_ms.eu-wset: `eu-wset` is not a front-end or region of this policy (did you "
        "mean `eu-west`?)",
    ),
    "dangling end of a round trip": (
        [("lab: 80", "lap: 80")],
        "",
        "52: network.rtt_ms.eu-west.lap: `lap` is not an engine or region of this policy (did you mean "
        "`lab`?)",
    ),
    "dangling denied engine": (
        [],
        "deny: [{engine: 'us-east-h100-{01..04}'}]\n",
        "53: deny[0].engine: `us-east-h100-04` is not an engine of this policy (did you mean",
    ),
    "dangling denied class": ([], "deny: [{class: chat}]\n", "53: deny[0].class: `chat` is not a class"),
    # models
    "served name of two models": (
        [("aliases: [chat-latest]", "aliases: [meta-llama/Llama-3.1-8B-Instruct]")],
        "",
        "25: models.llama-8b.served_as: `meta-llama/Llama-3.1-8B-Instruct` is already named at",
    ),
    "served name of another model in another case": (
        [("aliases: [chat-latest]", "aliases: [Meta-Llama/llama-3.1-8b-instruct]")],
        "",
        "25: models.llama-8b.served_as: `meta-llama/Llama-3.1-8B-Instruct` differs by case only from a name",
    ),
    "the name that stands for no model": (
        [("aliases: [chat-latest]", 'aliases: ["-"]')],
        "",
        "22: models.llama-70b.aliases[0]: is the text '-'; expected an exact model name",
    ),
    "adapter matched by another model's prefix": (
        [("aliases: [chat-latest]", "aliases: [acme-chat]")],
        "",
        "22: models.llama-70b.aliases: `acme-chat` is also matched by `acme-*` of another model",
    ),
    "prefix inside another model's prefix": (
        [("aliases: [chat-latest]", 'adapters: ["acme-eu-*"]')],
        "",
        "22: models.llama-70b.adapters: `acme-eu-*` is also matched by `acme-*` of another model",
    ),
    "no served name": (
        [("served_as: [meta-llama/Llama-3.1-8B-Instruct]", "served_as: []")],
        "",
        "25: models.llama-8b.served_as: has 0 entries; expected at least 1",
    ),
    "served name with a wildcard": (
        [("aliases: [chat-latest]", 'aliases: ["chat-*"]')],
        "",
        "22: models.llama-70b.aliases[0]: is the text 'chat-*'; expected an exact model name",
    ),
    "wildcard inside an adapter": (
        [('"acme-*"', '"ac*me"')],
        "",
        "26: models.llama-8b.adapters[1]: is the text 'ac*me'; expected a name, or a prefix that ends in *",
    ),
    "adapter that matches everything": (
        [('"acme-*"', '"*"')],
        "",
        "26: models.llama-8b.adapters[1]: is the text '*'; expected a name, or a prefix",
    ),
    "equal spellings inside Envoy": (
        [
            ("  llama-8b:", "  llama_70b:"),
            ("model: llama-8b", "model: llama_70b"),
            ("model: llama-8b", "model: llama_70b"),
            ("model: llama-8b", "model: llama_70b"),
            ("  llama-70b:", "  llama.70b:"),
            *[("model: llama-70b", "model: llama.70b")] * 3,
        ],
        "",
        "24: models.llama_70b: is spelled `llama_70b` inside Envoy, as is `llama.70b`; expected model ids",
    ),
    "session key without a source": (
        [("requires: [tools]", "session_keys: [user]")],
        "",
        "23: models.llama-70b.session_keys[0]: is the text 'user'; expected header:<lower-case name> or "
        "body:<field>",
    ),
    "internal session header": (
        [("requires: [tools]", 'session_keys: ["header:x-headrace-session"]')],
        "",
        "23: models.llama-70b.session_keys[0]: `x-headrace-session` is internal",
    ),
    # classes
    "upper-case header": (
        [("header: x-traffic-class", "header: X-Traffic-Class")],
        "",
        "17: classes.batch.match.header: is the text 'X-Traffic-Class'; expected a header name in lower case",
    ),
    "internal header": (
        [("header: x-traffic-class", "header: x-headrace-class")],
        "",
        "17: classes.batch.match.header: `x-headrace-class` is internal: Envoy removes every "
        "x-headrace-* header",
    ),
    "equal matches": (
        [(INTERACTIVE, INTERACTIVE + "match: {header: x-traffic-class, value: batch}, ")],
        "",
        "16: classes.interactive.match: is the same as the match of class batch; expected matches that "
        "tell classes apart",
    ),
    "ambiguous matches": (
        [(INTERACTIVE, INTERACTIVE + "match: {header: x-tier, value: gold}, ")],
        "",
        "16: classes.interactive.match: can be true together with the match of class batch; expected "
        "both classes in match_order",
    ),
    "ordered class without a match": (
        [("match_order: [batch]", "match_order: [batch, interactive]")],
        "",
        "18: match_order[1]: class interactive has no match; expected one of batch",
    ),
    "class ordered twice": (
        [("match_order: [batch]", "match_order: [batch, batch]")],
        "",
        "18: match_order: names 'batch' twice; expected each once",
    ),
    "empty service level": (
        [("ttft_slo_ms: {p95: 2000}", "ttft_slo_ms: {}")],
        "",
        "16: classes.interactive.ttft_slo_ms: is an empty map; expected p50, p95 or p99 in milliseconds",
    ),
    "service level of an unknown percentile": (
        [("{p95: 2000}", "{p90: 2000}")],
        "",
        "16: classes.interactive.ttft_slo_ms.p90: unknown key (did you mean `p99`?); expected one of "
        "p50, p95, p99",
    ),
    "empty residency": (
        [("residency: [eu]", "residency: []")],
        "",
        "11: frontends.eu-west.residency: has 0 entries; expected at least 1",
    ),
    "residency that an untrusted header could lift": (
        [("work: 3, match", "work: 3, residency: [eu], match")],
        "",
        "17: classes.batch.residency: the rule would be lifted by an untrusted header: class batch is "
        "told by the header x-traffic-class, which listener public does not trust",
    ),
    "model's residency that an untrusted header could lift": (
        [("      interactive: {output_tokens: 120}", "      batch: {residency: [eu]}")],
        "",
        "28: models.llama-8b.classes.batch.residency: the rule would be lifted by an untrusted header",
    ),
    # profiles
    "capacity at the edge": (
        [("lambda_max_rps: 5.5", "lambda_max_rps: 4.22")],
        "",
        "33: profiles.h100.capacity_rps: 4.6 × max_utilization 0.9 (engine eu-west-h100) is too near to "
        "lambda_max_rps 4.22; expected less than 0.98 × lambda_max_rps = 4.1356",
    ),
    "capacity at the edge by an engine's own utilization": (
        [(SPOT, SPOT + "max_utilization: 1.0, "), ("lambda_max_rps: 5.5", "lambda_max_rps: 4.6")],
        "",
        "33: profiles.h100.capacity_rps: 4.6 × max_utilization 1 (engine spot) is too near to "
        "lambda_max_rps 4.6",
    ),
    "capacity at the edge by default": (
        [("capabilities: [tools]", "max_utilization: auto"), ("lambda_max_rps: 5.5", "lambda_max_rps: 4.4")],
        "",
        "33: profiles.h100.capacity_rps: 4.6 × max_utilization 0.95 (engine eu-west-h100) is too near",
    ),
    "capacity beyond the table": (
        [("capacity_rps: 25", "capacity_rps: 27")],
        "",
        "36: profiles.a100.capacity_rps: 27 × max_utilization 0.9 (engine eu-west-pool) is above the "
        "last measured load 24; expected a table",
    ),
    "table of one point": (
        [(", {load_rps: 24, ttft_ms: 400, tbot_ms: 30}", "")],
        "",
        "37: profiles.a100.table: has 1 entry; expected at least 2",
    ),
    "table that does not rise": (
        [("{load_rps: 24,", "{load_rps: 0,")],
        "",
        "35: profiles.a100: the table has load_rps 0 after 0; expected loads that rise",
    ),
    "unknown key in a table": (
        [("tbot_ms: 30", "tpot_ms: 30")],
        "",
        "37: profiles.a100.table[1].tpot_ms: unknown key (did you mean `tbot_ms`?)",
    ),
    "service level that an idle replica misses": (
        [("tbot_slo_ms: 80", "tbot_slo_ms: 20")],
        "",
        "16: classes.interactive.tbot_slo_ms: 20 ms cannot be met: an idle replica of profile h100 (engine "
        "eu-west-h100) needs 24 ms; expected a level above that, or `classes` of the engine",
    ),
    "service level of a model that an idle replica misses": (
        [("interactive: {output_tokens: 120}", "batch: {ttft_slo_ms: {p50: 900, p99: 100}}")],
        "",
        "28: models.llama-8b.classes.batch.ttft_slo_ms: 100 ms cannot be met: an idle replica of",
    ),
    # members
    "unknown kind of member": (
        [(SPOT, SPOT + "members: magic, ")],
        "",
        "43: engines.spot.members: is the text 'magic'; expected reported, {static: [ip:port, ...]}",
    ),
    "two kinds of member": (
        [("replicas: 12", 'static: ["10.0.0.1:1"]')],
        "",
        "46: engines.eu-west-pool.members: does not say one kind of member; expected reported, or one "
        "of static",
    ),
    "gateway without replicas": (
        [(", replicas: 12", "")],
        "",
        "46: engines.eu-west-pool.members: `replicas` is missing; expected `replicas` with `dns` and "
        "`gateway`",
    ),
    "static with replicas": (
        [('"10.16.0.7:8000"]', '"10.16.0.7:8000"], replicas: 3')],
        "",
        "44: engines.us-east-a100.members: `replicas` does not go with this kind of member",
    ),
    "static member by name": (
        [('"10.16.0.7:8000"', '"host:8000"')],
        "",
        "44: engines.us-east-a100.members.static[0]: is the text 'host:8000'; expected ip:port (for "
        "names use `dns`)",
    ),
    "metadata address": (
        [('"10.16.0.7:8000"', '"169.254.169.254:80"')],
        "",
        "44: engines.us-east-a100.members.static[0]: `169.254.169.254:80` cannot be a replica",
    ),
    "static member outside the region": (
        [('"10.16.0.7:8000"', '"10.64.0.7:8000"')],
        "",
        "44: engines.us-east-a100.members.static: `10.64.0.7:8000` is outside the replica_cidrs of "
        "region us-east; expected an address in 10.16.0.0/12",
    ),
    "one address of two engines": (
        [(SPOT, SPOT + 'members: {static: ["10.16.0.7:8000"]}, ')],
        "",
        "44: engines.us-east-a100.members.static: `10.16.0.7:8000` is also a replica of spot",
    ),
    "one address of expanded engines": (
        [("{01..03}: {", '{01..03}: {members: {static: ["10.16.0.8:8000"]}, ')],
        "",
        "41: engines.us-east-h100-{01..03}.members.static: `10.16.0.8:8000` is also a replica of every "
        "engine",
    ),
    "gateway without a port": (
        [('"epp.example.net:80"', '"epp.example.net"')],
        "",
        "46: engines.eu-west-pool.members.gateway: is the text 'epp.example.net'; expected host:port",
    ),
    # network
    "missing pair": (
        [("lab: 5}", "lab: 5, lab-a100: 6}"), (", lab: 80}", "}")],
        "",
        "50: network.rtt_ms: there is no round trip from front-end eu-west to engine lab-a100; expected "
        "eu-west: {lab-a100: <ms>} or eu-west: {lab: <ms>}",
    ),
    "contradicting directions": (
        [("eu-west: {us-west: 137", "eu-west: {us-east: 90, us-west: 137")],
        "",
        "51: network.rtt_ms.us-east.eu-west: is 76 ms, but eu-west to us-east is 90 ms",
    ),
    "front-end named as another region": (
        [("  us-east: {region: us-east}\n", "  us-west: {region: us-east}\n")],
        "",
        "10: frontends.us-west: `us-west` is also the name of a region other than its own (us-east)",
    ),
    "engine named as another region": (
        [("lab-a100: {", "us-west: {")],
        "",
        "47: engines.us-west: `us-west` is also the name of a region other than its own (lab)",
    ),
    # regions and listeners
    "network with host bits": (
        [("10.16.0.0/12", "10.17.0.0/12")],
        "",
        "5: regions.us-east.replica_cidrs[0]: is the text '10.17.0.0/12' (10.17.0.0/12 has host bits "
        "set); expected a network",
    ),
    "gateway of a region without a port": (
        [("gw.euw1.example.net:15443", "gw.euw1.example.net")],
        "",
        "7: regions.eu-west.gateway: is the text 'gw.euw1.example.net'; expected host:port",
    ),
    "two listeners on one port": (
        [("port: 8444", "port: 8443")],
        "",
        "13: listeners.public.port: 8443 is already the port of listener internal; expected another port",
    ),
    "listener address by name": (
        [("port: 8443,", "port: 8443, address: localhost,")],
        "",
        "13: listeners.public.address: is the text 'localhost'; expected an IP address to bind",
    ),
    # deny, security, protection, planning
    "rule that denies everything": (
        [],
        "deny: [{reason: because}]\n",
        "53: deny[0]: matches everything; expected at least one of frontend, model, class, engine, region",
    ),
    "rule that denies nothing": (
        [],
        "deny: [{engine: spot, region: us-east}]\n",
        "53: deny[0]: matches no engine; expected model, engine and region of one engine at least",
    ),
    "inline secret": (
        [],
        "security: {xds: {cert: {file: a}, key: hunter2, client_ca: {file: c}, identity: "
        "'spiffe://p/{frontend}'}}\n",
        "53: security.xds.key: is written out here; expected {file: <path>}: paths, never secrets",
    ),
    "PEM block": (
        [("revision: 4f2c1a9", 'revision: "-----BEGIN PRIVATE KEY-----"')],
        "",
        "3: revision: holds a key or certificate itself; expected {file: <path>}",
    ),
    "identity without an engine": (
        [],
        "security: {reports: {cert: {file: a}, key: {file: b}, client_ca: {file: c}, identity: "
        "'spiffe://p/x'}}\n",
        "53: security.reports: the identity does not name the engine; expected {engine} once in `identity`",
    ),
    "identity without a front-end": (
        [],
        "security: {xds: {cert: {file: a}, key: {file: b}, client_ca: {file: c}, identity: "
        "'spiffe://p/{engine}'}}\n",
        "53: security.xds: the identity does not name the front-end",
    ),
    "identity with an unknown placeholder": (
        [],
        REPORTS + "client_ca: {file: c}, identity: 'spiffe://{fleet}/{engine}'}}\n",
        "53: security.reports: the identity has {fleet}; expected {cluster} or {engine} or {region}",
    ),
    "identity without an authority": (
        [],
        REPORTS + "identity: 'spiffe://p/{engine}'}}\n",
        "53: security.reports: has only one of `client_ca` and `identity`; expected both, or neither",
    ),
    "reports that nobody proves": (
        [],
        REPORTS + "}}\n",
        "53: security.reports: nothing proves who reports; expected `client_ca` and `identity`, or `tokens`",
    ),
    "token instead of its digest": (
        [],
        REPORTS + "tokens: {spot: [hunter2]}}}\n",
        "53: security.reports.tokens.spot[0]: is not a SHA-256 digest; expected 64 hex digits",
    ),
    "token of an unknown engine": (
        [],
        REPORTS + f"tokens: {{spit: [{'a' * 64}]}}}}}}\n",
        "53: security.reports.tokens.spit: `spit` is not an engine of this policy (did you mean `spot`?)",
    ),
    "unknown protection": (
        [],
        "protection: {retry: {}}\n",
        "53: protection.retry: unknown key (did you mean `retries`?); expected one of breakers, hash",
    ),
    "table size that is no prime": (
        [],
        "protection: {hash: {maglev_table_size: 65536}}\n",
        "53: protection.hash: maglev_table_size 65536 is not a prime; expected a prime such as 65537",
    ),
    "balance below the mean": (
        [],
        "protection: {hash: {balance_factor: 90}}\n",
        "53: protection.hash.balance_factor: is the number 90; expected an integer from 100 to 1000, or none",
    ),
    "penalty without hysteresis": (
        [],
        "protection: {penalties: {enter_ratio: 1.2, leave_ratio: 1.2}}\n",
        "53: protection.penalties: leave_ratio 1.2 is not below enter_ratio 1.2; expected leave_ratio < "
        "enter_ratio",
    ),
    "path of a health check": (
        [],
        "protection: {health_check: {path: health}}\n",
        "53: protection.health_check.path: is the text 'health'; expected text that matches",
    ),
    "unknown planning policy": (
        [],
        "planning: {policy: best}\n",
        "53: planning.policy: is the text 'best'; expected global, round_robin, nearest",
    ),
    "fleet-wide protection inside an engine": (
        [(SPOT, SPOT + "protection: {shedding: {}}, ")],
        "",
        "43: engines.spot.protection.shedding: unknown key; expected one of breakers, hash, health_check",
    ),
}


@pytest.mark.parametrize(("edits", "extra", "message"), CASES.values(), ids=CASES.keys())
def test_refused(write, edits, extra, message):
    file = write(*edits, extra=extra)
    with pytest.raises(PolicyError) as error:
        load(file)
    told = [str(problem).removeprefix(f"{file}:").strip() for problem in error.value.problems]
    assert any(text.startswith(message) for text in told), "\n".join(told)


def test_every_problem_is_told_at_once(write):
    file = write((T0, "t0_ms: -1"), ("port: 8443", "port: x"), ("fleet: prod", "fleet: no"))
    with pytest.raises(PolicyError) as error:
        load(file)
    assert [problem.path for problem in error.value.problems] == [
        "fleet",
        "listeners.public.port",
        "profiles.h100.t0_ms",
    ]


def test_each_message_has_a_file_and_what_was_expected(write):
    file = write((T0, "t0_ms: -1"))
    with pytest.raises(PolicyError, match=re.escape(f"{file}:31: profiles.h100.t0_ms: ") + ".*; expected "):
        load(file)


def test_a_secret_is_not_repeated_in_the_message(write):
    file = write(extra="security: {xds: {cert: hunter2}}\n")
    with pytest.raises(PolicyError) as error:
        load(file)
    assert "hunter2" not in str(error.value)


def test_missing_distances_are_told_once_for_each_pair_of_places(write):
    file = write(
        ("    us-east: {us-west: 62, eu-west: 76, lab: 5}\n", "    us-east: {us-west: 62, lab: 5}\n")
    )
    with pytest.raises(PolicyError) as error:
        load(file)
    assert len(error.value.problems) == 2
