package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// runMain runs a command line as main does.
func runMain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// Scripts depend on these.
func TestExitCodes(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("rules: [{prot: 80}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		says string // in what is not told as a result; empty: nothing
	}{
		{"--version", 0, ""},
		{"version", 0, ""},
		{"", 0, ""},
		{"help explain", 0, ""},
		{"completion bash", 0, ""},
		{"completion zsh", 0, ""},
		{"completion fish", 0, ""},
		{"completion powershell", 0, ""},

		{"status --listen " + nobody, 1, "no agent listens there"},
		{"explain 80 --listen " + nobody, 1, "no agent listens there"},
		{"events -f --listen " + nobody, 1, "no agent listens there"},
		{"check -c " + bad, 1, "bad.yaml:1:10: rules[0].prot: unknown key; did you mean port?"},
		{"check -c " + bad + "x", 1, "no such file"},

		{"statsu", 2, `unknown command "statsu"; did you mean status?`},
		{"xyzzy", 2, `unknown command "xyzzy"` + "\nTry 'headgate --help'."},
		{"completion", 2, "which one: bash, fish, powershell, zsh?"},
		{"completion tcsh", 2, `unknown command "tcsh"`},
		{"run", 2, "nothing to protect"},
		{"run --windw 1s", 2, "unknown flag: --windw\nTry 'headgate run --help'."},
		{"run -p 80 --window soon", 2, "--window"},
		{"run -p 80 --mode obsrve", 2, "--mode"},
		{"check -p 99999", 2, "-p"},
		{"run -p 80 --log-level loud", 2, "--log-level"},
		{"status shop --listen " + nobody, 1, "no agent listens there"},
		{"status -o yaml", 2, "--output"},
		{"explain", 2, "accepts 1 arg"},
		{"explain http --scope host", 2, `"http" is not a port`},
		{"explain shop --listen " + nobody, 1, "no agent listens there"},
		{"explain 0", 2, `"0" is not a port`},
		{"doctor -p http", 2, `"http" is not a port`},
		{"events --type refusal", 2, `--type: "refusal" is none of rejection,`},
		{"cleanup --state here", 2, "--state"},
		{"simulate --workers -1", 2, "server.workers: -1"},
		{"simulate -o png", 2, "--output"},
		{"simulate --compare -o svg", 2, "--output"},
		{"simulate --compare=drawn", 2, `--compare: "drawn" is none of report, tuning`},
		{"simulate --compare --seeds 0", 2, "--seeds: 0"},
		{"simulate --compare --workers 4", 2, "--workers has no meaning with it"},
		{"demo --server apache", 2, "--server"},
		{"limit", 2, "which one: clear, set?"},
		{"limit set 8080 many", 2, `"many" is not a limit`},
		{"limit set 8080 5 --for 10", 2, `--for: "10" is not a time and its unit, such as 500ms, 10s, 5m or 1h30m` + "\nTry 'headgate limit set --help'."},
		{"limit set 8080 5 --for -1s", 2, "--for: -1s is not above 0s"},
		{"simulate --service soon", 2, `--service: "soon" is not a time and its unit`},
		{"mode off", 2, `"off" is neither observe nor enforce`},
		{"man", 2, "accepts 1 arg"},
		{"version extra", 2, "extra"},
	} {
		code, stdout, stderr := runMain(t, strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(stderr, tt.says) || (tt.says == "") != (stderr == "") || (code == 0) != (stdout != "") {
			t.Errorf("%q: exit code %d, want %d; stdout %.80q, stderr %q", tt.args, code, tt.code, stdout, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	_, flag, _ := runMain(t, "--version")
	_, verb, _ := runMain(t, "version")
	if flag != verb || !regexp.MustCompile(`^headgate \S+ linux/\S+ go\S+\n$`).MatchString(verb) {
		t.Errorf("%q, %q", flag, verb)
	}
}

// Every command says what it does, and every one that can be run refuses
// arguments that it has no use for.
func TestCommandsAreComplete(t *testing.T) {
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if c.Short == "" || c.Args == nil && c.Name() != "help" {
			t.Errorf("%s: short %q, arguments checked: %v", c.CommandPath(), c.Short, c.Args != nil)
		}
		for _, child := range c.Commands() {
			look(child)
		}
	}
	look(newRootCmd(io.Discard, io.Discard))
}

func TestMan(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir := filepath.Join(t.TempDir(), "man1")
	if code, out, errs := runMain(t, "man", dir); code != 0 || errs != "" {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	for _, c := range newRootCmd(io.Discard, io.Discard).Commands() {
		if c.Hidden || c.Name() == "help" {
			continue
		}
		page, err := os.ReadFile(filepath.Join(dir, "headgate-"+c.Name()+".1"))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Contains(page, []byte(".SH SYNOPSIS")) || !bytes.Contains(page, []byte("Nov 2023")) {
			t.Errorf("%s: %.300s", c.Name(), page)
		}
	}
}

// Without an agent there is nothing to complete, and no file either.
func TestCompletionWithoutAnAgent(t *testing.T) {
	_, out, _ := runMain(t, "__complete", "explain", "--listen", "127.0.0.1:1", "")
	if out != ":4\n" {
		t.Errorf("%q", out)
	}
	_, out, _ = runMain(t, "__complete", "events", "--type", "rej")
	if !strings.HasPrefix(out, "rejection\n") || !strings.HasSuffix(out, "\n:4\n") {
		t.Errorf("%q", out)
	}
}

var update = flag.Bool("update", false, "write testdata/help.txt anew")

// What every command says of itself, as it was last looked at.
func TestHelp(t *testing.T) {
	for _, name := range []string{"HEADGATE_LISTEN", "HEADGATE_STATE", "HEADGATE_SOCKET"} {
		t.Setenv(name, "") // defaults in the text
	}
	var all strings.Builder
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		if c.Name() == "help" || c.Parent() != nil && c.Parent().Name() == "completion" {
			return // cobra's
		}
		args := append(strings.Fields(c.CommandPath())[1:], "--help")
		code, out, errs := runMain(t, args...)
		if code != 0 || errs != "" {
			t.Errorf("%v: exit code %d, %s", args, code, errs)
		}
		fmt.Fprintf(&all, "$ %s --help\n%s\n", c.CommandPath(), out)
		for _, child := range c.Commands() {
			look(child)
		}
	}
	look(newRootCmd(io.Discard, io.Discard))
	golden := filepath.Join("testdata", "help.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), all.String()); d != "" {
		t.Errorf("run with -update if that is meant:\n%s", d)
	}
}
