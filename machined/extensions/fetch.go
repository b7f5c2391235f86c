package extensions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
)

// Source is a place that can have the files of an extension.
type Source struct {
	Name string // for messages: "registry registry.example.com"
	From artifact.Source
}

const (
	// smallTimeout bounds the transfer of a manifest or a statement, imageTimeout that of an image.
	// The sources end a transfer that stalls.
	smallTimeout = time.Minute
	imageTimeout = time.Hour
	// reserve is the space of DATA in bytes that a fetch leaves free; an upgrade leaves the same.
	reserve = 512 << 20
)

// fetch fetches an extension from the first source that has it.
func (s Store) fetch(ctx context.Context, image config.Artifact, trust extension.Trust, profile string, sources []Source) error {
	var tried []string
	for _, source := range sources {
		err := s.fetchFrom(ctx, image.SHA256, trust, profile, source.From)
		if err == nil {
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = errors.New("does not have it")
		}
		tried = append(tried, fmt.Sprintf("%s: %v", source.Name, err))
	}
	return fmt.Errorf("extension %s: %s; Machine.spec.registries has the access data of a registry, and `orlopctl image import` needs none", image, strings.Join(tried, ", "))
}

// fetchFrom fetches the missing files of an extension. It reads the image only after the statement
// is verified and DATA has the space.
func (s Store) fetchFrom(ctx context.Context, sum string, trust extension.Trust, profile string, from artifact.Source) error {
	manifest, err := s.fetchSmall(ctx, artifact.Blob{SHA256: sum, Size: -1}, extension.MaxManifest, from)
	if err != nil {
		return err
	}
	part, image, err := extension.Parts(manifest)
	if err != nil {
		return err
	}
	envelope, err := s.fetchSmall(ctx, part, extension.MaxStatement, from)
	if err != nil {
		return err
	}
	statement, err := verifyStatement(envelope, image, trust)
	if err != nil {
		return err
	}
	if err := checkProfile(statement, profile); err != nil {
		return err
	}
	if !s.hasImage(image) {
		if err := s.fetchImage(ctx, image, from); err != nil {
			return err
		}
	}
	if err := s.write(part, bytes.NewReader(envelope)); err != nil {
		return err
	}
	return s.write(artifact.Blob{SHA256: sum, Size: int64(len(manifest))}, bytes.NewReader(manifest))
}

func (s Store) fetchSmall(ctx context.Context, b artifact.Blob, limit int64, from artifact.Source) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, smallTimeout)
	defer cancel()
	body, err := from.Open(ctx, b)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return readVerified(body, b.SHA256, limit)
}

func (s Store) fetchImage(ctx context.Context, b artifact.Blob, from artifact.Source) error {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	if err := s.makeDir(); err != nil {
		return err
	}
	free, err := s.Free(s.Dir)
	if err != nil {
		return fmt.Errorf("extensions: cannot read the free space: %w", err)
	}
	if free < b.Size+reserve {
		return fmt.Errorf("it is too large: it has %d MiB, and DATA has %d MiB of free space, of which %d MiB stay free; remove images or volumes", b.Size>>20, free>>20, reserve>>20)
	}
	body, err := from.Open(ctx, b)
	if err != nil {
		return err
	}
	defer body.Close()
	return s.write(b, body)
}
