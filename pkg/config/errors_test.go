package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// errorCases are files with their errors, each as line:column: key: message,
// or the beginning of it.
var errorCases = map[string]struct {
	text string
	in   Input
	want []string
}{
	"unknown keys, all reported": {
		text: "lisen: x\nrules:\n  - port: 80\n    limits: {}\n    limit: {maxx: 3}\n    scope: {net: a}\n",
		want: []string{
			"1:1: lisen: unknown key; did you mean listen? the keys here are defaults, lease, listen, mode, rules, socket, socket_group, state, web_config, window",
			"4:5: rules[0].limits: unknown key; did you mean limit? the keys here are classes, end, exempt, force, hold, limit, mode, name, pace, per_source, port, ports, reject, scope, signal, unit, warm_up",
			"5:13: rules[0].limit.maxx: unknown key; did you mean max? the keys here are algorithm, ",
			"6:13: rules[0].scope.net: unknown key; the keys here are cgroup, netns, pods",
		},
	},
	"a wait that requests have not": {
		text: `rules:
  - port: 80
    unit: request
    signal: accept
`,
		want: []string{
			"4:13: rules[0].signal: what a connection takes says nothing of the requests on it",
			"4:13: rules[0].signal: accept is next to 0 while a worker is free, so guarded has nothing to compare a wait with",
		},
	},
	"scopes": {
		text: `rules:
  - {port: 1, scope: {cgroup: ""}}
  - {port: 2, scope: {cgroup: a/../b, netns: blue}}
  - {port: 3, scope: {cgroup: "a**/[x"}}
  - {port: 4, scope: {cgroup: "x/[x"}}
  - {port: 5, scope: {cgroup: a, pods: {}}}
  - {port: 6, scope: {pods: {namespace: Shop_1, labels: {"a b": c, d: "e f"}}}}
  - {port: 7, scope: {pods: {labels: web, annotations: maybe, node: n1}}}
  - {scope: {pods: {namespace: shop}}}
  - {port: 8, scope: {pods: {labels: {a: b, c: d}}}}
  - {port: 8, scope: {pods: {labels: {c: d, a: b}}}}
  - {scope: {pods: {annotations: true}}}
  - {scope: {pods: {annotations: true, namespace: x}}}
`,
		want: []string{
			`2:31: rules[0].scope.cgroup: "" names no cgroup: the root, which has every process below it, is none to protect`,
			`3:31: rules[1].scope.cgroup: "a/../b" has a name ".." in it`,
			`4:31: rules[2].scope.cgroup: "a**/[x" "a**": ** stands for whole names only`,
			`5:31: rules[3].scope.cgroup: "x/[x" "[x": syntax error in pattern`,
			`6:22: rules[4].scope: netns, cgroup and pods exclude each other`,
			`7:41: rules[5].scope.pods.namespace: "Shop_1" is not the name of a namespace`,
			`7:65: rules[5].scope.pods.labels.a b: "a b" is not the key of a label`,
			`7:71: rules[5].scope.pods.labels.d: "e f" is not the value of a label`,
			`8:38: rules[6].scope.pods.labels: want labels with values, such as {app: web}, not a single value`,
			`8:56: rules[6].scope.pods.annotations: "maybe" is neither true nor false`,
			`8:63: rules[6].scope.pods.node: unknown key; the keys here are annotations, labels, namespace`,
			`9:5: rules[7]: the rule has no port`,
			`11:12: rules[9].port: port 8 of scope pods:{a=b,c=d} is protected at`,
			`13:5: rules[11]: a rule named pods is at`,
		},
	},
	"sources": {
		text: `rules:
  - {port: 1, exempt: [10.0.0.1/8, "fe80::1%eth0", 10.0.0.0/33, 10.0.0.0/8, "::ffff:10.0.0.0/104"]}
  - {port: 2, exempt: ["::/0"]}
  - {port: 3, exempt: ["::/0", 0.0.0.0/0], force: true}
  - {port: 4, per_source: {prefix4: 24}}
  - {port: 5, per_source: {limit: 0, prefix4: 33, prefix6: 0, shared: {10.0.0.0/8: 0, 10.0.0.0/99: 1}}}
  - port: 6
    exempt: [10.0.0.0/8]
    per_source: {limit: 1, shared: {10.1.0.0/16: 5, 11.0.0.0/8: 5}}
    classes: [{name: a, sources: [10.1.0.0/16], share: 0.1}]
  - {port: 7, exempt: [10.0.0.0/8], per_source: {limit: 1, shared: {10.1.0.0/16: 5}}, force: true}
  - {port: 8, exempt: [10.1.0.0/16], per_source: {limit: 1, shared: {10.0.0.0/8: 5}}} # all but these
  - port: 9
    classes:
      - {name: a, sources: [10.0.0.0/8], share: 0.6}
      - {name: a, sources: [10.0.0.0/8, 11.0.0.0/8], share: 0.5}
  - {port: 10, classes: [{sources: [10.0.0.0/8], share: 2}, {name: others, share: 0.5}, {name: b, sources: [1.0.0.0/8]}]}
`,
		want: []string{
			"2:24: rules[0].exempt[0]: \"10.0.0.1/8\" has bits set behind the first 8; the network is 10.0.0.0/8",
			"2:36: rules[0].exempt[1]: \"fe80::1%eth0\" is not a network such as 10.0.0.0/8 or \"fd00::/8\", nor an address",
			"2:52: rules[0].exempt[2]: \"10.0.0.0/33\" is not a network such as 10.0.0.0/8 or \"fd00::/8\", nor an address",
			"2:77: rules[0].exempt[4]: 10.0.0.0/8 is at /etc/headgate.yaml:2:65 already",
			"3:24: rules[1].exempt[0]: ::/0 exempts everybody; set force: true if that is meant",
			"5:27: rules[3].per_source: has no limit",
			"6:27: rules[4].per_source: has no limit",
			"6:35: rules[4].per_source.limit: 0 is not from 1 to 1000000",
			"6:47: rules[4].per_source.prefix4: 33 is not from 1 to 32",
			"6:60: rules[4].per_source.prefix6: 0 is not from 1 to 128",
			"6:84: rules[4].per_source.shared[10.0.0.0/8]: 0 is not from 1 to 1000000",
			"6:87: rules[4].per_source.shared[10.0.0.0/99]: \"10.0.0.0/99\" is not a network such as 10.0.0.0/8 or \"fd00::/8\", nor an address",
			"9:37: rules[5].per_source.shared[10.1.0.0/16]: 10.1.0.0/16 is exempt by 10.0.0.0/8 at /etc/headgate.yaml:8:14, so that nothing of it is ever counted; set force: true if that is meant",
			"10:35: rules[5].classes[0].sources[0]: 10.1.0.0/16 is exempt by 10.0.0.0/8 at /etc/headgate.yaml:8:14, so that it has no use for a share; set force: true if that is meant",
			"16:16: rules[8].classes[1].name: a class named a is at /etc/headgate.yaml:15:16 already",
			"16:29: rules[8].classes[1].sources[0]: 10.0.0.0/8 is of the class at /etc/headgate.yaml:15:29 already",
			"16:61: rules[8].classes[1].share: the shares up to here are 1.1, more than the whole limit",
			"17:26: rules[9].classes[0]: the name \"\" is not 1 to 63 letters, digits, dots, dashes and underscores",
			"17:57: rules[9].classes[0].share: 2 is not above 0 and at most 1",
			"17:61: rules[9].classes[1]: has no sources",
			"17:68: rules[9].classes[1].name: others is what those are called that are of no class",
			"17:89: rules[9].classes[2]: has no share",
		},
	},
	"units": {
		text: `defaults: {signal: connection}
rules:
  - {port: 1, unit: requests}
  - {port: 2, end: first_byte}
  - {port: 3, unit: request, end: last_byte, signal: service}
  - {port: 4, unit: request, reject: drop}
  - {port: 5, unit: request, reject: fin, signal: rtt}
  - {port: 6, unit: request, end: {idel: 1s}, signal: rtt}
`,
		want: []string{
			"1:20: defaults.signal: what a connection takes says nothing of the requests on it; with unit: request this is service or rtt",
			`3:21: rules[0].unit: "requests" is not one of: connection, request`,
			"4:20: rules[1].end: says when a request is over, but the unit is connection",
			`5:35: rules[2].end: "last_byte" is not one of: first_byte`,
			"6:38: rules[3].reject: a request cannot be dropped, since TCP would send it again and again; with unit: request this is reset",
			`7:38: rules[4].reject: "fin" is not one of: reset, drop`,
			"8:36: rules[5].end.idel: unknown key; did you mean idle? the keys here are idle",
		},
	},
	"holds": {
		text: `rules:
  - {port: 1, hold: {max_wait: -1ms, max_waiting: 0, order: random, most: 1}}
  - {port: 2, hold: {max_wait: 3601s, max_waiting: 16385}}
  - {port: 3, hold: {}}
  - {port: 4, hold: {order: lifo}}
  - {port: 5, hold: {max_waiting: 10}, pace: {rate: 10}}
  - {port: 6, hold: 10ms}
  - {port: 7, hold: {max_wait: 0s, order: lifo}}
  - port: 8
    hold:
`,
		want: []string{
			"2:32: rules[0].hold.max_wait: -1ms is not from 0s to 1h0m0s",
			"2:51: rules[0].hold.max_waiting: 0 is not from 1 to 16384",
			`2:61: rules[0].hold.order: "random" is not one of: fifo, lifo`,
			"2:69: rules[0].hold.most: unknown key; the keys here are max_wait, max_waiting, order",
			"3:32: rules[1].hold.max_wait: 1h0m1s is not from 0s to 1h0m0s",
			"3:52: rules[1].hold.max_waiting: 16385 is not from 1 to 16384",
			"4:21: rules[2].hold: nothing waits without a max_wait here or in pace",
			"5:21: rules[3].hold: nothing waits without a max_wait here or in pace",
			"6:21: rules[4].hold: nothing waits without a max_wait here or in pace",
			"7:21: rules[5].hold: want keys with values, not a single value",
			"7:21: rules[5].hold: nothing waits without a max_wait here or in pace",
			"10:5: rules[7].hold: nothing waits without a max_wait here or in pace",
		},
	},
	"paces": {
		text: `rules:
  - {port: 1, pace: {rate: 0, max_wait: 2h, headroom: 0.09, warm_up: {period: 999ms, cold_factor: 1}}}
  - {port: 2, pace: {rate: 1000001, headroom: 11, warm_up: {period: 25h, cold_factor: 1001}}}
  - {port: 3, pace: {rate: fast}}
  - {port: 4, pace: {rate: .nan}}
  - {port: 5, pace: {rate: nan}}
  - {port: 6, pace: {rate: [1]}}
  - {port: 7, pace: {}}
  - {port: 8, pace: {max_wait: 1s}}
  - {port: 9, pace: {rate: 10, headroom: 2}}
  - {port: 10, pace: {rate: auto, warm_up: {period: 10s}}}
  - {port: 11, pace: {rate: 10, warm_up: {cold_factor: 4}}}
  - {port: 12, pace: {rate: 0.19, warm_up: {period: 10s}}}
  - {port: 13, pace: {rate: 0.21, warm_up: {period: 10s}}}
  - {port: 14, pace: {rate: auto, headroom: -.inf}}
`,
		want: []string{
			"2:28: rules[0].pace.rate: 0 is not from 0.001 to 1000000",
			"2:41: rules[0].pace.max_wait: 2h0m0s is not from 0s to 1h0m0s",
			"2:55: rules[0].pace.headroom: 0.09 is not from 0.1 to 10",
			"2:79: rules[0].pace.warm_up.period: 999ms is neither 0s nor from 1s to 24h0m0s",
			"2:99: rules[0].pace.warm_up.cold_factor: 1 is not from 2 to 1000",
			"3:28: rules[1].pace.rate: 1.000001e+06 is not from 0.001 to 1000000",
			"3:47: rules[1].pace.headroom: 11 is not from 0.1 to 10",
			"3:69: rules[1].pace.warm_up.period: 25h0m0s is neither 0s nor from 1s to 24h0m0s",
			"3:87: rules[1].pace.warm_up.cold_factor: 1001 is not from 2 to 1000",
			`4:28: rules[2].pace.rate: "fast" is neither a number nor auto nor none`,
			`5:28: rules[3].pace.rate: ".nan" is neither a number nor auto nor none`,
			"6:28: rules[4].pace.rate: NaN is not from 0.001 to 1000000",
			"7:28: rules[5].pace.rate: want a number, auto or none, not a list",
			"8:21: rules[6].pace: has no rate",
			"9:21: rules[7].pace: has no rate",
			"10:42: rules[8].pace.headroom: is a factor of rate: auto, but the rate is 10",
			"11:53: rules[9].pace.warm_up.period: not with rate: auto, which begins at the initial limit and rises with it; 0s turns the warm-up off",
			"12:42: rules[10].pace.warm_up: has no period",
			"13:53: rules[11].pace.warm_up.period: 10s at 0.19 a second has room for 1 of the 2 units (cold_factor - 1) that a warm-up needs at least",
			`15:45: rules[13].pace.headroom: "-.inf" is not a number`,
		},
	},
	"the defaults' warm-up": {"defaults: {pace: {warm_up: {period: 10s}}}\nrules: [{port: 1, pace: {rate: auto}}]", Input{}, []string{
		"1:37: defaults.pace.warm_up.period: not with rate: auto"}},
	"ports": {
		text: "rules:\n- port: 0\n- port: 70000\n- ports: [80, -1, 1.5, x, 0x50, 080, [1]]\n- port:\n- port: [81]\n- {}\n- ports: []\n- {port: 1, ports: [2]}\n",
		want: []string{
			"2:9: rules[0].port: 0 is not from 1 to 65535",
			"3:9: rules[1].port: 70000 is not from 1 to 65535",
			"4:15: rules[2].ports[1]: -1 is not from 1 to 65535",
			`4:19: rules[2].ports[2]: "1.5" is not a whole number in decimal from 1 to 65535`,
			`4:24: rules[2].ports[3]: "x" is not a whole number`,
			`4:27: rules[2].ports[4]: "0x50" is not a whole number`,
			`4:33: rules[2].ports[5]: "080" is not a whole number`,
			"4:38: rules[2].ports[6]: want a whole number, not a list",
			"5:3: rules[3].port: has no value; want a whole number",
			"6:9: rules[4].port: want a whole number, not a list",
			"7:3: rules[5]: the rule has no port",
			"8:3: rules[6]: the rule has no port",
			"9:10: rules[7].port: port and ports cannot both be given",
		},
	},
	"duplicates name both places": {
		text: `rules:
  - {name: a, port: 80}
  - {name: a, ports: [81, 80, 81]}
  - {name: b, port: 80, scope: {netns: x}}
  - {name: c, port: 80, scope: {netns: /var/run/netns/x}}
  - {name: d, port: 80, scope: {netns: /proc/1/ns/net}}
  - {port: 82}
  - {port: 82, scope: {netns: x}}
`,
		want: []string{
			"3:12: rules[1].name: a rule named a is at /etc/headgate.yaml:2:12 already",
			"3:27: rules[1].ports[1]: port 80 of scope host is protected at /etc/headgate.yaml:2:21 already",
			"3:31: rules[1].ports[2]: port 81 of scope host is protected at /etc/headgate.yaml:3:23 already",
			"5:21: rules[3].port: port 80 of scope netns:x is protected at /etc/headgate.yaml:4:21 already",
			"8:5: rules[6]: a rule named port-82 is at /etc/headgate.yaml:7:5 already",
		},
	},
	"limits": {
		text: `defaults:
  limit: {min: 50}
rules:
  - {port: 1, limit: {max: 40}}
  - {port: 2, limit: {algorithm: gradient2, initial: 10, min: 20}}
  - {port: 3, limit: {algorithm: gradient2, initial: 201}}
  - {port: 4, limit: {algorithm: aimd, smoothing: 0.1, timeout: -1s}}
  - {port: 5, limit: {algorithm: fixed, min: 0, initial: 0}}
  - {port: 6, limit: {algorithm: best}}
  - {port: 7, limit: {algorithm: gradient2, smoothing: .nan, queue_size: many, warm_up: 1s}}
  - {port: 8, warm_up: 2h}
  - {port: 9, limit: 5}
`,
		want: []string{
			"4:28: rules[0].limit.max: 40 is less than min (50)",
			"5:54: rules[1].limit.initial: 10 is not from 20 to 200 (min to max)",
			"6:54: rules[2].limit.initial: 201 is not from 50 to 200 (min to max)",
			"7:51: rules[3].limit.smoothing: not a setting of aimd",
			"7:65: rules[3].limit.timeout: -1s is not from 1ns to 1h0m0s",
			"8:58: rules[4].limit.initial: a limit of 0 refuses everybody; set force: true if that is meant",
			`9:34: rules[5].limit.algorithm: "best" is not one of: aimd, blog, fixed, gradient, gradient2, guarded, vegas`,
			`10:56: rules[6].limit.smoothing: ".nan" is not a number`,
			`10:74: rules[6].limit.queue_size: "many": not a number`,
			"10:80: rules[6].limit.warm_up: unknown key",
			"11:24: rules[7].warm_up: 2h0m0s is not from 0s to 1h0m0s",
			"12:22: rules[8].limit: want keys with values, not a single value",
		},
	},
	"the rest of the top": {
		text: "listen: localhost\nstate: bpf\nwindow: 1s\nlease: 2s\nmode: watch\nrules: []\nsocket: here\n",
		want: []string{
			`1:9: listen: "localhost" is not host:port, such as 127.0.0.1:9464 or [::1]:9464`,
			`2:8: state: "bpf" is not the absolute path of a directory`,
			"4:8: lease: the lease of 2s is less than 3 windows of 1s",
			`5:7: mode: "watch" is not one of: enforce, observe`,
			`7:9: socket: "here" is neither none nor an absolute path of at most 107 bytes`,
		},
	},
	"window below": {"window: 9.9ms\nrules: [{port: 1}]", Input{}, []string{"1:9: window: 9.9ms is not from 10ms to 10s"}},
	"window above": {"window: 10001ms\nrules: [{port: 1}]", Input{}, []string{"1:9: window: 10.001s is not from 10ms to 10s"}},
	"window 5s":    {"window: 5s\nrules: [{port: 1}]", Input{}, []string{"1:9: window: the lease of 3s is less than 3 windows of 5s"}},
	"lease":        {"lease: 999ms\nrules: [{port: 1}]", Input{}, []string{"1:8: lease: 999ms is not from 1s to 1h0m0s"}},
	"no unit":      {"lease: 3\nrules: [{port: 1}]", Input{}, []string{`1:8: lease: "3" is not a duration such as 100ms, 2s or 1m30s`}},
	"listen port":  {"listen: :99999\nrules: [{port: 1}]", Input{}, []string{`1:9: listen: ":99999" is not host:port`}},
	"rule name":    {"rules: [{port: 1, name: a b}]", Input{}, []string{`1:25: rules[0].name: "a b" is not 1 to 63 letters`}},
	"netns name":   {"rules: [{port: 1, scope: {netns: ../x}}]", Input{}, []string{`1:34: rules[0].scope.netns: "../x" is neither`}},
	"scope":        {"rules: [{port: 1, scope: all}]", Input{}, []string{`1:26: rules[0].scope: "all" is not one of: host`}},
	"force":        {"rules: [{port: 1, force: yes}]", Input{}, []string{`1:26: rules[0].force: "yes" is neither true nor false`}},
	"own of a rule": {"defaults: {name: x, force: true}\nrules: [{port: 1}]", Input{}, []string{
		"1:18: defaults.name: belongs to a rule; there is no default for it",
		"1:28: defaults.force: belongs to a rule; there is no default for it"}},
	"defaults judged once": {"defaults: {limit: {smoothing: 1}}\nrules: [{port: 1}, {port: 2}]", Input{}, []string{
		"1:31: defaults.limit.smoothing: not a setting of guarded"}},
	"empty":           {"", Input{}, []string{" rules: no rule: nothing would be protected"}},
	"comment only":    {"# nothing\n", Input{}, []string{" rules: no rule"}},
	"a list":          {"- port: 1", Input{}, []string{"1:1: want keys with values, not a list"}},
	"key given twice": {"lease: 3s\nlease: 4s\n", Input{}, []string{`2:1: not valid YAML: mapping key "lease" already defined at [1:1]`}},
	"not YAML":        {"rules: [", Input{}, []string{"1:8: not valid YAML: "}},
	"two documents":   {"lease: 3s\n---\nlease: 3s\n", Input{}, []string{"3:6: a second document; a configuration is one"}},
	"alias":           {"a: &x [1]\nb: *x\n", Input{}, []string{"1:4: anchors, aliases and merge keys are not part of this format; use defaults"}},
	"tag":             {"lease: !!str 3s\n", Input{}, []string{"1:8: tags and directives are not part of this format"}},
	"deep brackets":   {"rules: " + strings.Repeat("[", 500_000), Input{}, []string{"1:23: nested deeper than 16"}},
	"deep dashes":     {strings.Repeat("- ", 500_000), Input{}, []string{"1:33: nested deeper than 16"}},
	"deep questions":  {strings.Repeat("? ", 500_000), Input{}, []string{`1:1: a key is written "key: value"`}},
	"many keys":       {manyKeys("k%d: 1\n"), Input{}, []string{"257:1: more than 256 keys in one mapping"}},
	"many in a rule":  {"rules:\n- port: 1\n" + manyKeys("  k%d: 1\n"), Input{}, []string{"258:3: more than 256 keys in one mapping"}},
	"many in braces":  {"rules: [{port: 1}, {\n" + manyKeys("k%d: 1,\n") + "}]", Input{}, []string{"258:1: more than 256 keys in one mapping"}},
	"too large":       {"# " + strings.Repeat("x", 1<<20), Input{}, []string{" is larger than 1048576 bytes"}},
	"ssh": {"rules: [{port: 8080}, {port: 22}, {port: 22, name: in-x, scope: {netns: x}}]", Input{SSHPorts: []uint16{22}}, []string{
		"1:30: rules[1].port: port 22 is that of your ssh session, which the rule could lock out; set force: true if that is meant"}},
	"ssh in the host's namespace by its path": {"rules: [{port: 22, scope: {netns: /proc/self/ns/net}}]", Input{SSHPorts: []uint16{22}}, []string{
		"1:16: rules[0].port: port 22 is that of your ssh session, which the rule could lock out; set force: true if that is meant"}},
	"own port": {"listen: :9000\nrules: [{port: 9000}]", Input{}, []string{
		"2:16: rules[0].port: port 9000 is the agent's own (/etc/headgate.yaml:1:9), whose scrapes the rule could refuse; set force: true if that is meant"}},
	"-p": {"rules: [{port: 8080}]", Input{Ports: []string{"8080", "70000", "http", "22"}, SSHPorts: []uint16{22}}, []string{
		`-p "70000": 70000 is not from 1 to 65535`,
		`-p "http": "http" is not a whole number in decimal from 1 to 65535`,
		`-p "8080": port 8080 of scope host is protected at /etc/headgate.yaml:1:16 already`,
		`-p "22": port 22 is that of your ssh session`,
	}},
}

// manyKeys is a mapping of tens of thousands of keys.
func manyKeys(line string) string {
	var b strings.Builder
	for i := range 80_000 {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

func TestErrors(t *testing.T) {
	for name, tt := range errorCases {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			c, err := parse(t, tt.text, tt.in)
			// The largest take 50 ms; what is not linear in them takes many seconds.
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
			if c != nil {
				t.Error("a configuration was returned")
			}
			var all Errors
			if !errors.As(err, &all) {
				t.Fatalf("got %v", err)
			}
			var got []string
			for i, e := range all {
				line, _, _ := strings.Cut(e.Error(), "\n")
				line = strings.TrimPrefix(line, "/etc/headgate.yaml:")
				if i < len(tt.want) && strings.HasPrefix(line, tt.want[i]) {
					line = tt.want[i]
				}
				got = append(got, line)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestErrorText(t *testing.T) {
	_, err := parse(t, "lease: 3s\nrules:\n  - name: häuser\n    port: 0 # none\n  - port: 70000"+
		strings.Repeat(" ", 100)+"# \x1b[31mred\n", Input{Overrides: []Override{
		func(key string) (string, string, bool) { return "0s", "--window", key == "window" }}})
	want := `--window: window: 0s is not from 10ms to 10s
/etc/headgate.yaml:3:11: rules[0].name: "häuser" is not 1 to 63 letters, digits, dots, dashes and underscores
    3 |   - name: häuser
      |           ^
/etc/headgate.yaml:4:11: rules[0].port: 0 is not from 1 to 65535
    4 |     port: 0 # none
      |           ^
/etc/headgate.yaml:5:11: rules[1].port: 70000 is not from 1 to 65535
    5 |   - port: 70000
      |           ^`
	if err == nil {
		t.Fatal("accepted")
	}
	if d := cmp.Diff(want, err.Error()); d != "" {
		t.Error(d)
	}
	if strings.ContainsRune(err.Error(), 0x1b) {
		t.Error("an escape sequence of the file reaches the terminal")
	}
}

func TestManyErrorsAreBounded(t *testing.T) {
	_, err := parse(t, "rules:\n"+strings.Repeat("- port: 0\n", 1000), Input{})
	var all Errors
	if !errors.As(err, &all) || len(all) != 101 || all[100].Msg != "has more errors than are shown" {
		t.Errorf("%d errors, the last %v", len(all), all[len(all)-1])
	}
}

// A file that is wrong all over is refused in little time, whatever its form.
func TestWrongAllOver(t *testing.T) {
	for name, text := range map[string]string{
		"one line":   "rules: [{ports: [" + strings.Repeat("0,", 100_000) + "0]}]",
		"one list":   "rules:\n- ports:\n" + strings.Repeat("  - 0\n", 50_000),
		"rules":      "rules:\n" + strings.Repeat("- {port: 8080}\n", 20_000),
		"no mapping": "rules: [" + strings.Repeat("1,", 100_000) + "1]",
	} {
		t.Run(name, func(t *testing.T) {
			begun := time.Now()
			_, err := parse(t, text, Input{})
			var all Errors
			if !errors.As(err, &all) || len(all) != maxReported+1 {
				t.Errorf("%d errors", len(all))
			}
			if took := time.Since(begun); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}
