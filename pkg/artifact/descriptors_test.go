package artifact

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestDescriptors checks that a list within the limit decodes as in encoding/json. A longer list,
// or a value that is not a list, is an error.
func TestDescriptors(t *testing.T) {
	for text, want := range map[string]string{
		`null`: "0", `[]`: "0", `[{"digest":"sha256:a","size":3},{}]`: "2", `[null]`: "1",
		`{}`: "the descriptors are not a list", `3`: "the descriptors are not a list", `[3]`: "cannot unmarshal number",
		"[" + strings.Repeat("{},", MaxDescriptors-1) + "{}]": fmt.Sprint(MaxDescriptors),
		"[" + strings.Repeat("{},", MaxDescriptors) + "{}]":   fmt.Sprintf("more than %d", MaxDescriptors),
	} {
		var m struct{ Layers Descriptors }
		err := json.Unmarshal([]byte(`{"layers":`+text+`}`), &m)
		got := fmt.Sprint(len(m.Layers))
		if err != nil {
			got = err.Error()
		}
		if len(text) > 60 {
			text = text[:60] + "…"
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
		if strings.HasPrefix(want, "more") && !errors.Is(err, ErrDescriptors) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
