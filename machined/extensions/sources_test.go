package extensions

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/config"
)

// namedSource is a source with a name.
type namedSource string

func (namedSource) Open(context.Context, artifact.Blob) (io.ReadCloser, error) {
	return nil, errors.New("not opened")
}

// TestPlaces checks from which sources a machine fetches an extension, and in which order. If the
// registry has an error, the other sources are tried first.
func TestPlaces(t *testing.T) {
	image := config.Artifact{Registry: "registry.example.com", Repository: "gvisor", SHA256: strings.Repeat("0", 64)}
	in := config.New("m1", config.RoleWorker)
	in.Cluster = &config.Cluster{}
	for name, test := range map[string]struct {
		config     *config.Config
		containerd bool
		err        error // the error of Places.Registry
		want       []string
	}{
		"no cluster, no containerd": {config.New("m1", config.RoleWorker), false, nil, []string{"registry registry.example.com"}},
		"no containerd":             {in, false, nil, []string{"control-plane machines", "registry registry.example.com"}},
		"all":                       {in, true, nil, []string{"imported images", "control-plane machines", "registry registry.example.com"}},
		"a wrong CA":                {in, true, errors.New("wrong CA"), []string{"imported images", "control-plane machines", "registry registry.example.com"}},
	} {
		p := Places{Imported: namedSource("imported"), ControlPlane: namedSource("peers"), Containerd: test.containerd, Registry: func(got string) (artifact.Source, error) {
			if got != image.String() {
				t.Errorf("%s: registry of %s", name, got)
			}
			return namedSource("registry"), test.err
		}}
		all := p.Of(test.config, image)
		var names []string
		for _, s := range all {
			names = append(names, s.Name)
		}
		if !slices.Equal(names, test.want) {
			t.Errorf("%s: %q, want %q", name, names, test.want)
		}
		last := all[len(all)-1].From
		if _, err := last.Open(t.Context(), artifact.Blob{}); test.err != nil && !errors.Is(err, test.err) || test.err == nil && last != namedSource("registry") {
			t.Errorf("%s: %v, %v", name, last, err)
		}
	}
}

// TestSaved checks that SavedImages returns the extensions of stored configurations, and that a
// rollback to a configuration is rejected if its extensions are not stored.
func TestSaved(t *testing.T) {
	f := newFixture(t)
	c := config.New("m1", config.RoleWorker)
	image := f.publish("gvisor", "0.2.0", nil)
	c.Machine.Spec.Extensions.Images = []config.Artifact{image}
	documents := config.Marshal(c)
	if all, err := SavedImages([][]byte{documents, config.Marshal(config.New("m2", config.RoleWorker))}); err != nil || !slices.Equal(all, []config.Artifact{image}) {
		t.Errorf("%v, %v", all, err)
	}
	if all, err := SavedImages([][]byte{documents, []byte("kind: Pod\n")}); err == nil || all != nil {
		t.Errorf("unknown documents: %v, %v", all, err)
	}
	if err := f.manager.CheckRollback(documents); err == nil || !strings.Contains(err.Error(), "is not stored") {
		t.Errorf("a rollback to a configuration with a missing extension: %v", err)
	}
	// CheckRollback accepts documents that this version cannot read, because the other version
	// reads them.
	for _, other := range []string{"", "kind: Pod\n"} {
		if err := f.manager.CheckRollback([]byte(other)); err != nil {
			t.Errorf("%q: %v", other, err)
		}
	}
}
