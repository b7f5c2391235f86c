package contexts

import (
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// TestContextsTogether checks that concurrent changes of the contexts lose no added context.
func TestContextsTogether(t *testing.T) {
	t.Setenv("ORLOP_CONFIG", filepath.Join(t.TempDir(), "directory", "config"))
	const count = 30
	var all sync.WaitGroup
	for n := range count {
		all.Go(func() {
			err := Change(func(f *File) error {
				f.Contexts["m"+strconv.Itoa(n)] = Context{Endpoint: "h"}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	file, err := Load()
	if err != nil || len(file.Contexts) != count {
		t.Fatalf("the file has %d of %d added contexts, %v", len(file.Contexts), count, err)
	}
}
