package main

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// libraries are where Debian has those of amd64.
var libraries = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"}

// program adds a program of this machine with the libraries that it needs.
func (c *cpio) program(name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	c.file(filepath.Join("usr/bin", name), path, 0o755)
	return c.needs(path)
}

func (c *cpio) needs(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	if s := f.Section(".interp"); s != nil {
		text, err := s.Data()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if linker := string(text[:len(text)-1]); !c.made[linker] {
			c.made[linker] = true
			c.file(linker[1:], linker, 0o755)
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range names {
		if err := c.library(name); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (c *cpio) library(name string) error {
	for _, dir := range libraries {
		path := filepath.Join(dir, name)
		if c.made[path] {
			return nil
		}
		if _, err := os.Stat(path); err != nil {
			continue
		}
		c.made[path] = true
		c.file(path[1:], path, 0o644)
		return c.needs(path)
	}
	return fmt.Errorf("library %s is not in %q", name, libraries)
}
