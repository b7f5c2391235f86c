package volumes

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestMove moves a directory, also after interrupted attempts. After each attempt, the original or
// the copy must be complete under its name.
func TestMove(t *testing.T) {
	for name, prepare := range map[string]func(from, to string) error{
		"first attempt":                            func(_, to string) error { return os.Mkdir(to, 0o700) },
		"interrupted during the copy":              func(_, to string) error { return os.MkdirAll(to+".partial/member", 0o700) },
		"a target from an earlier attempt":         func(_, to string) error { return os.MkdirAll(to+"/member/old", 0o700) },
		"a moved original from an earlier attempt": func(from, _ string) error { return os.MkdirAll(from+movedSuffix+"/x", 0o700) },
		"the target does not exist":                func(string, string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			from, to := filepath.Join(dir, "lib/etcd"), filepath.Join(dir, "volume/etcd")
			if err := errors.Join(os.MkdirAll(from+"/member", 0o700), os.WriteFile(from+"/member/db", []byte("data"), 0o600), os.Mkdir(filepath.Dir(to), 0o755), prepare(from, to)); err != nil {
				t.Fatal(err)
			}
			stopped, stop := context.WithCancel(t.Context())
			stop()
			if err := (Move{Name: "e", From: from, To: to}).Do(stopped); err == nil {
				t.Fatal("a stopped move succeeds")
			}
			if got, err := os.ReadFile(from + "/member/db"); err != nil || string(got) != "data" {
				t.Fatalf("the original after a stopped move: %q, %v", got, err)
			}
			if err := (Move{Name: "e", From: from, To: to}).Do(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := (Link{Path: from, Target: to}).Do(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(from + "/member/db"); err != nil || string(got) != "data" {
				t.Errorf("through the link: %q, %v", got, err)
			}
			if entries, err := os.ReadDir(to); err != nil || len(entries) != 1 {
				t.Errorf("the copy has %v, %v", entries, err)
			}
			if err := (RemoveMoved{Path: from}).Do(t.Context()); err != nil {
				t.Error(err)
			}
			if entries, err := os.ReadDir(filepath.Dir(from)); err != nil || len(entries) != 1 {
				t.Errorf("beside the link: %v, %v", entries, err)
			}
		})
	}
}

// TestMoveMakesRoom checks that makeRoom removes the copies of earlier attempts before it reads the
// free space, and returns an error if the copy does not fit. If the original does not exist, it
// removes nothing.
func TestMoveMakesRoom(t *testing.T) {
	dir := t.TempDir()
	m := Move{Name: "i", From: filepath.Join(dir, "containerd"), To: filepath.Join(dir, "volume/containerd")}
	partial := m.To + ".partial"
	if err := os.MkdirAll(partial+"/a", 0o700); err != nil {
		t.Fatal(err)
	}
	free := uint64(1)
	read := func(path string) (uint64, error) {
		if entries, err := os.ReadDir(path); err != nil || len(entries) > 0 || path != filepath.Dir(m.To) {
			t.Errorf("the free space of %s is read while it contains %v, %v", path, entries, err)
		}
		return free, nil
	}
	if err := m.makeRoom(partial, read); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without an original: %v", err)
	}
	if _, err := os.Stat(partial + "/a"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.MkdirAll(m.To+"/a", 0o700), os.Mkdir(m.From, 0o700), os.WriteFile(m.From+"/image", make([]byte, 64<<10), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := m.makeRoom(partial, read); err == nil {
		t.Error("makeRoom accepts a copy that does not fit")
	}
	free = 1 << 20
	if err := m.makeRoom(partial, read); err != nil {
		t.Error(err)
	}
}

// TestMoveDirectory checks that Move with Directory leaves an empty directory with the same mode,
// over which the volume is mounted.
func TestMoveDirectory(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "pods"), filepath.Join(dir, "volume/pods")
	if err := errors.Join(os.MkdirAll(from+"/a", 0o755), os.Chmod(from, 0o751), os.Mkdir(filepath.Dir(to), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := (Move{Name: "l", From: from, To: to, Directory: true}).Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{from: 0, to: 1} {
		info, err := os.Stat(path)
		entries, err2 := os.ReadDir(path)
		if err := errors.Join(err, err2); err != nil || len(entries) != want || info.Mode().Perm() != 0o751 {
			t.Errorf("%s: the directory is %v with the entries %v, %v", path, info, entries, err)
		}
	}
}

// TestLinkKeepsData checks that Link does not replace a directory that has an entry.
func TestLinkKeepsData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd")
	if err := os.MkdirAll(path+"/member", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (Link{Path: path, Target: "/x"}).Do(t.Context()); err == nil {
		t.Error("a directory with data was replaced")
	}
	if _, err := os.Stat(path + "/member"); err != nil {
		t.Error(err)
	}
}

// TestUnlink checks that Unlink removes a link and no directory.
func TestUnlink(t *testing.T) {
	dir := t.TempDir()
	link, other := filepath.Join(dir, "link"), filepath.Join(dir, "dir")
	if err := errors.Join(os.Symlink("/nowhere", link), os.Mkdir(other, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := (Unlink{link}).Do(t.Context()); err != nil {
		t.Error(err)
	}
	if err := (Unlink{other}).Do(t.Context()); err == nil {
		t.Error("a directory was removed")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the remaining entries are %v, %v", entries, err)
	}
}
