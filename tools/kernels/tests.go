package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// job is one program that a guest runs.
type job struct {
	dir     string // of its package, within the repository; where it runs
	program string // the static binary
	args    string // for a shell
}

// suite is tests of one package.
type suite struct {
	dir  string
	skip []string // tests, or parts of tests after a slash, that are not for a guest
	core string   // the tests that are run where time is short, as go test -run; "": none
}

var suites = []suite{
	{dir: "pkg/scope", core: "."},
	{dir: "pkg/netfilter", core: "."},
	{dir: "pkg/loader", core: "^(TestCheck|TestLookupKnowsAV4MappedClient|TestExpiredReservations|TestAdoptBlind)$"},
	{dir: "pkg/device", core: "^(TestKinds|TestForeignTCX|TestTakenAway)$"},
	{dir: "pkg/pace", core: "^TestRuleIsNotRebuiltWhileAnythingIsHeld$"},
	{
		dir: "internal/e2e",
		skip: []string{
			// They measure what a machine can do, and that is not what a guest is for.
			"TestClassesUnderLoad", "TestFieldStaleEntries", "TestFloodKeepsNobodyOut", "TestHeldChurn",
			"TestHoldProcess/killed_and_started_again", "TestOverloadLimited", "TestOverloadUnlimited",
			"TestPacedAuto", "TestPacedRates", "TestPacedWarmUp", "TestRequestChurn", "TestRequestCost",
			"TestRequestLimit", "TestRequestLimitFromFarBelow", "TestRequestsWithoutAgent/killed",
			"TestServiceTime", "TestServiceTimeOfFastTLS",
			// A guest has no such programs.
			"TestRequestLimitOfPostgres", "TestRequestLimitOfRedis", "TestRequestLimitOfServers",
			"TestRequestsAreCountedOnce/TLS_1.2_of_nginx", "TestRequestsAreCountedOnce/TLS_1.3_of_nginx",
			"TestUpgradeUnderLoad", // builds another one
			// They are about what the agent is told and tells, on any kernel the same.
			"TestChangesAreTold", "TestControl", "TestDoctorOfKilledAgent", "TestExplain", "TestInput",
			"TestKeysOfTheLimit", "TestLogIsNotRead", "TestPageUnderLoad", "TestPodAnnotations",
			"TestPodsInANamedNamespace", "TestPodsWithoutAPI", "TestPrecedence", "TestPrometheus",
			"TestRefusalsAreTold", "TestReload", "TestReloadFails", "TestReloadKeepsWhatWasLearned",
			"TestReloadTimes", "TestReloadUnderLoad", "TestServiceManager",
		},
		core: "^(TestClientReset|TestFieldRestart|TestFieldLoopback)$",
	},
}

// skipped is what is skipped, as go test -skip.
func (s suite) skipped() string {
	var all []string
	for _, name := range s.skip {
		test, part, ok := strings.Cut(name, "/")
		if test = "^" + test + "$"; ok {
			test += "/^" + part + "$"
		}
		all = append(all, test)
	}
	return strings.Join(all, "|")
}

// choice says which tests are run.
type choice struct {
	core     bool
	packages *regexp.Regexp
	tests    string // instead of what the suites say, as go test -run
}

// builder compiles for guests.
type builder struct {
	arch string // as Go names it, and Debian too
	dir  string // for the binaries
}

// jobs builds what a guest runs: the facts first.
func (b builder) jobs(ctx context.Context, c choice) ([]job, error) {
	facts, err := b.program(ctx, "tools/kernels/facts", "")
	if err != nil {
		return nil, err
	}
	// Tests start it.
	agent, err := b.program(ctx, "cmd/agent", "version")
	if err != nil {
		return nil, err
	}
	jobs := []job{facts, agent}
	for _, s := range suites {
		args := "-test.v -test.timeout 60m"
		switch {
		case c.tests != "":
			args += fmt.Sprintf(" -test.run '%s'", c.tests)
		case c.core:
			args += fmt.Sprintf(" -test.run '%s'", s.core)
		}
		if c.tests == "" && len(s.skip) > 0 {
			args += fmt.Sprintf(" -test.skip '%s'", s.skipped())
		}
		if c.core && s.core == "" || !c.packages.MatchString(s.dir) {
			continue
		}
		j := job{dir: s.dir, program: filepath.Join(b.dir, filepath.Base(s.dir)+".test"), args: args}
		if err := b.goBuild(ctx, "test", "-c", "-o", j.program, "./"+s.dir); err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func (b builder) program(ctx context.Context, dir, args string) (job, error) {
	j := job{dir: dir, program: filepath.Join(b.dir, filepath.Base(dir)), args: args}
	return j, b.goBuild(ctx, "build", "-o", j.program, "./"+dir)
}

func (b builder) goBuild(ctx context.Context, verb string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{verb, "-trimpath", "-ldflags=-s -w"}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+b.arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s %s: %w\n%s", verb, strings.Join(args, " "), err, out)
	}
	return nil
}
