package imagestore

import (
	"slices"
	"testing"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestImported(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	record := func(name, digest string, after time.Duration) *imagesapi.Image {
		return &imagesapi.Image{Name: name, Target: &types.Descriptor{Digest: digest}, UpdatedAt: timestamppb.New(began.Add(after))}
	}
	pause := record("registry/pause:1", "sha256:p", -time.Hour)
	labelled := record("registry/pause:1", "sha256:p", time.Second) // by a pod that started meanwhile
	for _, c := range []struct {
		what          string
		before, after []*imagesapi.Image
		want          []string
	}{
		{"a new image, with the name that containerd adds",
			[]*imagesapi.Image{pause},
			[]*imagesapi.Image{labelled, record("web:1", "sha256:w", 1), record("sha256:c", "sha256:w", 2)},
			[]string{"web:1", "sha256:c"}},
		{"a name that moves",
			[]*imagesapi.Image{record("web:1", "sha256:w", -1)},
			[]*imagesapi.Image{record("web:1", "sha256:x", 1)},
			[]string{"web:1"}},
		{"the same archive again",
			[]*imagesapi.Image{pause, record("web:1", "sha256:w", -1)},
			[]*imagesapi.Image{pause, record("web:1", "sha256:w", 1)},
			[]string{"web:1"}},
		{"nothing for this machine", []*imagesapi.Image{pause}, []*imagesapi.Image{pause}, nil},
	} {
		var got []string
		for _, i := range imported(c.before, c.after, began) {
			got = append(got, i.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
