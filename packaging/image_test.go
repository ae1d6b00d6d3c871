package packaging

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// image builds the image for this machine, checks what it says of itself, and
// unpacks it.
func image(t *testing.T) (rootfs string) {
	t.Helper()
	dir := t.TempDir()
	run(t, "./image", "v0.0.1", dir, runtime.GOARCH)
	archive := filepath.Join(dir, "headgate-0.0.1-image.tar")
	info, err := os.Stat(archive)
	if err != nil {
		t.Fatal(err)
	}
	if mb := float64(info.Size()) / 1e6; mb > 25 {
		t.Errorf("the image has %.1f MB, more than 25", mb)
	}
	layout := filepath.Join(dir, "layout")
	if err := os.Mkdir(layout, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, "tar", "-C", layout, "-xf", archive)

	type descriptor struct {
		Digest   string
		Platform struct{ Architecture, OS string }
	}
	get := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(read(t, filepath.Join(layout, name))), into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	blob := func(d descriptor) string { return "blobs/" + strings.ReplaceAll(d.Digest, ":", "/") }
	var index struct{ Manifests []descriptor }
	get("index.json", &index)
	get(blob(index.Manifests[0]), &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.Architecture != runtime.GOARCH || index.Manifests[0].Platform.OS != "linux" {
		t.Fatalf("manifests: %v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	get(blob(index.Manifests[0]), &manifest)
	var config struct {
		Architecture string
		Config       struct {
			Entrypoint []string
			Labels     map[string]string
		}
	}
	get(blob(manifest.Config), &config)
	if config.Architecture != runtime.GOARCH || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/headgate"}) {
		t.Errorf("configuration: %v", config)
	}
	labels := config.Config.Labels
	for label, want := range map[string]string{
		"title": "headgate", "version": "0.0.1", "licenses": "Apache-2.0 AND GPL-2.0-only",
		"revision": strings.TrimSpace(run(t, "git", "rev-parse", "HEAD")),
	} {
		if got := labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s: %q, want %q", label, got, want)
		}
	}

	rootfs = filepath.Join(dir, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, l := range manifest.Layers {
		run(t, "tar", "-C", rootfs, "-xzf", filepath.Join(layout, blob(l)))
	}
	var sbom struct {
		BOMFormat string
		Metadata  struct {
			Component struct{ Name, Version string }
		}
		Components []struct{ Name, Version string }
	}
	text := read(t, filepath.Join(rootfs, "usr/share/sbom/headgate.cdx.json"))
	if err := json.Unmarshal([]byte(text), &sbom); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, c := range sbom.Components {
		known[c.Name] = true
	}
	if sbom.BOMFormat != "CycloneDX" || sbom.Metadata.Component.Version != "v0.0.1" || !known["std"] {
		t.Errorf("SBOM: %v, std %t", sbom.Metadata, known["std"])
	}
	for _, line := range strings.Split(run(t, "go", "version", "-m", filepath.Join(rootfs, "usr/bin/headgate")), "\n") {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "dep" && !known[f[1]] {
			t.Errorf("SBOM: %s is in the binary and not in it", f[1])
		}
	}
	return rootfs
}
