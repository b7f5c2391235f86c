package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/imager/debian"
)

// knowsCalls is a C program. It prints the version of libseccomp, and the number of a system call
// that libseccomp knows since 2.6.
const knowsCalls = `#include <seccomp.h>
#include <stdio.h>
int main(void) {
	const struct scmp_version *v = seccomp_version();
	printf("%u.%u statmount=%d\n", v->major, v->minor, seccomp_syscall_resolve_name("statmount"));
	return 0;
}
`

// TestSysroot compiles a program in two directories. The program must contain the pinned libraries,
// and no path of these directories.
func TestSysroot(t *testing.T) {
	lock, err := debian.ReadLock(filepath.Join("..", lockFile))
	if err != nil {
		t.Fatal(err)
	}
	var programs [2][]byte
	for i, name := range []string{"one", "a 'second' one"} {
		dir := filepath.Join(t.TempDir(), name)
		archive := NewArchive(lock, filepath.Join("..", defaultCache))
		root, err := newSysroot(archive, dir)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := newSysroot(archive, dir); err != nil || again != root {
			t.Errorf("the second call of newSysroot: %v, %v; want %v", again, err, root)
		}
		environment, err := root.environment(filepath.Join(dir, "bin"))
		if err != nil {
			t.Fatal(err)
		}
		out := filepath.Join(dir, "program")
		script := "exec gcc $CGO_CFLAGS $CGO_LDFLAGS -Wl,--build-id=none -x c -o \"$1\" - -lseccomp"
		c := exec.Command("sh", "-c", script, "sh", out)
		c.Env, c.Stdin = append(os.Environ(), environment...), strings.NewReader(knowsCalls)
		if said, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		if said, err := exec.Command(out).Output(); err != nil || string(said) != "2.6 statmount=457\n" {
			t.Errorf("the program prints %q, %v", said, err)
		}
		if programs[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
		if len(archive.used) > 0 {
			t.Errorf("packages of the sysroot count as parts of the image: %v", archive.used)
		}
	}
	if !bytes.Equal(programs[0], programs[1]) {
		t.Error("the directory of the sysroot changes the program")
	}
}
