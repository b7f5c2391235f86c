package imagestore

import (
	"slices"
	"testing"
	"time"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func TestImported(t *testing.T) {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	record := func(name string, after time.Duration, labels map[string]string) *imagesapi.Image {
		return &imagesapi.Image{Name: name, UpdatedAt: timestamppb.New(began.Add(after)), Labels: labels}
	}
	with := map[string]string{labelImported: "true"}
	// A pod that starts during the import pulls pause.
	pause, labelled := record("registry/pause:1", -time.Hour, nil), record("registry/pause:1", time.Second, nil)
	old, again := record("web:1", -time.Minute, with), record("web:1", 1, with)
	for _, c := range []struct {
		what          string
		before, after []*imagesapi.Image
		want          []string
	}{
		{"a new image, beside the name that containerd adds, and one that is pulled",
			[]*imagesapi.Image{pause},
			[]*imagesapi.Image{labelled, again, record("sha256:c", 2, nil), record("secret:1", 3, nil)},
			[]string{"web:1"}},
		{"a name that was pulled before", []*imagesapi.Image{record("web:1", -1, nil)}, []*imagesapi.Image{again}, []string{"web:1"}},
		{"the same archive again, with one more image", []*imagesapi.Image{pause, old}, []*imagesapi.Image{pause, again, record("web:2", 2, with)}, []string{"web:1", "web:2"}},
		{"another archive", []*imagesapi.Image{old}, []*imagesapi.Image{old, record("web:2", 2, with)}, []string{"web:2"}},
		{"the clock was set back during the import", []*imagesapi.Image{old}, []*imagesapi.Image{record("web:1", -time.Hour, with)}, []string{"web:1"}},
		{"no image for this machine", []*imagesapi.Image{pause}, []*imagesapi.Image{pause}, nil},
	} {
		var got []string
		for _, i := range imported(c.before, c.after) {
			got = append(got, i.Name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
