package safefile

import (
	"io"
	"testing"
)

// TestInMemory checks the name and the content of a file in memory.
func TestInMemory(t *testing.T) {
	f, err := InMemory("question", []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); string(got) != "content" || err != nil || f.Name() != "question" {
		t.Errorf("%s: %q, %v", f.Name(), got, err)
	}
}
