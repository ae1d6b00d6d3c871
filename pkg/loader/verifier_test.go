package loader

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write testdata/verifier.json anew")

// verifierFile holds what the programs cost when they were last looked at.
const verifierFile = "verifier.json"

// growth is by how much of itself a figure may grow before somebody has to
// look at it, and run the test with -update.
const growth = 0.10

// verifierCosts is the content of verifierFile.
type verifierCosts struct {
	// Kernel is the series, "6.18", whose verifier was asked. Others prune
	// their search differently and come to other numbers.
	Kernel   string                 `json:"kernel"`
	Programs map[string]programCost `json:"programs"`
}

type programCost struct {
	Verified     uint32 `json:"verified"`     // instructions that the verifier went through
	Instructions uint32 `json:"instructions"` // in the object, on any kernel
}

// The verifier gives up after a million instructions, and how many it goes
// through can explode with a harmless edit.
func TestVerifierCost(t *testing.T) {
	g := openForTest(t)
	spec, err := loadHeadgate()
	if err != nil {
		t.Fatal(err)
	}
	got := verifierCosts{Kernel: kernelSeries(t), Programs: make(map[string]programCost)}
	for _, name := range slices.Sorted(maps.Keys(g.progs)) {
		info, err := g.progs[name].Info()
		if err != nil {
			t.Fatal(err)
		}
		verified, ok := info.VerifiedInstructions()
		if !ok {
			t.Fatalf("the kernel does not tell what %s cost", name)
		}
		jited, _ := info.JitedSize()
		cost := programCost{Verified: verified, Instructions: uint32(spec.Programs[name].Instructions.Size() / 8)}
		got.Programs[name] = cost
		t.Logf("%-18s %5d instructions, %5d bytes of machine code, %6d instructions verified",
			name, cost.Instructions, jited, cost.Verified)
	}

	file := filepath.Join("testdata", verifierFile)
	if *update {
		text, err := json.MarshalIndent(got, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want verifierCosts
	if err := json.Unmarshal(text, &want); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if a, b := slices.Sorted(maps.Keys(got.Programs)), slices.Sorted(maps.Keys(want.Programs)); !slices.Equal(a, b) {
		t.Errorf("programs %q, %s has %q", a, file, b)
	}
	if got.Kernel != want.Kernel {
		t.Logf("what is verified is not compared: %s is of Linux %s, this is %s", file, want.Kernel, got.Kernel)
	}
	check := func(name, what string, got, want uint32) {
		t.Helper()
		if float64(got) > float64(want)*(1+growth) {
			t.Errorf("%s: %d instructions %s, were %d (more than 10 %% up: run with -update if it has to be)", name, got, what, want)
		}
	}
	for name, w := range want.Programs {
		check(name, "in the object", got.Programs[name].Instructions, w.Instructions)
		if got.Kernel == want.Kernel {
			check(name, "verified", got.Programs[name].Verified, w.Verified)
		}
	}
}

// kernelSeries is the running kernel's version without its last number.
func kernelSeries(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(u.Release[:])
	series := regexp.MustCompile(`^\d+\.\d+`).FindString(release)
	if series == "" {
		t.Fatalf("release %q", release)
	}
	return series
}
