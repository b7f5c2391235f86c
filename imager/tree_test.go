package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestTreeAdd(t *testing.T) {
	tree := Tree{}
	for _, name := range []string{"/usr/bin/a", "/usr/lib"} {
		if err := tree.Add(name, Node{Dir: name == "/usr/lib", Mode: 0o755, From: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := tree.Names(), []string{"/usr", "/usr/bin", "/usr/bin/a", "/usr/lib"}; !reflect.DeepEqual(got, want) {
		t.Errorf("names %v, want %v", got, want)
	}
	for name, want := range map[string]string{"/usr/bin/a": "comes from x and from y", "/usr/bin/a/b": "/usr/bin/a above it is not a directory"} {
		if err := tree.Add(name, Node{From: "y"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Add(%s): error %v, want %s", name, err, want)
		}
	}
}

func TestTreeWriteIgnoresUmask(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	dir := filepath.Join(t.TempDir(), "root")
	tree := Tree{"/bin": {Dir: true, Mode: 0o755}, "/bin/tool": {Mode: 0o755, Data: []byte("\x7fELF")}, "/bin/link": {Target: "tool"}}
	if err := tree.Write(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"": 0o755, "bin": 0o755, "bin/tool": 0o755} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v; want mode %v", name, info, err, want)
		}
	}
	if got, want := tree.Executables(), []string{"/bin/link -> tool", "/bin/tool"}; !reflect.DeepEqual(got, want) {
		t.Errorf("executables %v, want %v", got, want)
	}
}

func TestCheckNoInterpreter(t *testing.T) {
	for name, c := range map[string]struct {
		tree Tree
		want string
	}{
		"no interpreter":                  {Tree{"/tool": {Mode: 0o755, Data: []byte("\x7fELF...")}, "/empty": {Mode: 0o644}}, ""},
		"shell":                           {Tree{"/sh": {Mode: 0o755, Data: []byte("\x7fELF...")}}, "/sh: is named like an interpreter"},
		"interpreter with a version":      {Tree{"/python3.11": {Mode: 0o755, Data: []byte("\x7fELF...")}}, "/python3.11: is named like an interpreter"},
		"link that is named like a shell": {Tree{"/tool": {Mode: 0o755, Data: []byte("\x7fELF...")}, "/bash": {Target: "tool"}}, "/bash: is named like an interpreter"},
		"script":                          {Tree{"/hook": {Mode: 0o644, Data: []byte("#!/usr/bin/nft -f\n")}}, "/hook: is a script"},
		"executable text":                 {Tree{"/text": {Mode: 0o755, Data: []byte("echo hello")}}, "/text: is executable but not an ELF file"},
		"executable empty":                {Tree{"/none": {Mode: 0o755}}, "/none: is executable but not an ELF file"},
	} {
		dir := filepath.Join(t.TempDir(), "root")
		if err := c.tree.Write(dir); err != nil {
			t.Fatal(err)
		}
		err := CheckNoInterpreter(dir)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}
