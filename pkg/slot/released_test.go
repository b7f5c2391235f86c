package slot

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/test/releasedtest"
)

func TestReleasedEntries(t *testing.T) {
	var text strings.Builder
	for name := range strings.Lines(string(releasedtest.Read(t, "entries.txt"))) {
		e, ok := ParseEntry(strings.TrimSpace(name))
		if !ok {
			t.Errorf("%s: cannot parse", name)
		}
		text.WriteString(e.Name() + "\n")
	}
	releasedtest.CompareFile(t, "entries.txt", []byte(text.String()))
}
