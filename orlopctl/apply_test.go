package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestEditorInterrupted checks that `edited` returns the edited text although Ctrl-C in the editor
// also sends a signal to this program.
func TestEditorInterrupted(t *testing.T) {
	t.Setenv("VISUAL", "kill -INT "+strconv.Itoa(os.Getpid())+"; kill -QUIT "+strconv.Itoa(os.Getpid())+"; sh -c 'echo edited >>\"$0\"'")
	name, after, err := edited([]byte("before\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(name)
	if got := strings.Fields(string(after)); len(got) != 2 || got[1] != "edited" {
		t.Errorf("got %q", after)
	}
	// The editor itself receives the signals and ends. If this program ignored the signals, the
	// editor would ignore them, too, because a child process inherits ignored signals.
	t.Setenv("VISUAL", "sh -c 'kill -INT $$; echo it lives'")
	if _, _, err := edited([]byte("before\n")); err == nil || !strings.Contains(err.Error(), "nothing was changed") {
		t.Errorf("after the editor was interrupted: got %v", err)
	}
}
