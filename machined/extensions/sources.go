package extensions

import (
	"context"
	"io"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/config"
)

// Places are the places that can have an image (Deps.Sources).
type Places struct {
	// Imported has the imported images. It is used only if Containerd is true: containerd runs.
	Imported   artifact.Source
	Containerd bool
	// ControlPlane has the images of the control-plane machines.
	ControlPlane artifact.Source
	// Registry returns the registry of an image, with its access data in the configuration.
	Registry func(image string) (artifact.Source, error)
}

// Of returns the places for an image of a configuration, in order.
func (p Places) Of(c *config.Config, image config.Artifact) (all []Source) {
	if p.Containerd {
		all = append(all, Source{Name: "imported images", From: p.Imported})
	}
	if c.Cluster != nil {
		all = append(all, Source{Name: "control-plane machines", From: p.ControlPlane})
	}
	from, err := p.Registry(image.String())
	if err != nil {
		from = unusable{err}
	}
	return append(all, Source{Name: "registry " + image.Registry, From: from})
}

// unusable is a source that cannot be used.
type unusable struct{ err error }

// Open implements artifact.Source.
func (u unusable) Open(context.Context, artifact.Blob) (io.ReadCloser, error) { return nil, u.err }

// SavedImages returns the images of saved documents of configurations (Deps.Others).
func SavedImages(saved [][]byte) (all []config.Artifact, err error) {
	for _, documents := range saved {
		c, err := parseSaved(documents)
		if err != nil {
			return nil, err
		}
		all = append(all, images(c)...)
	}
	return all, nil
}

func parseSaved(documents []byte) (*config.Config, error) {
	c, problems := config.Parse("saved configuration", documents)
	return c, problems.Err()
}
