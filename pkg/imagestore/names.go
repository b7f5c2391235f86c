package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// containerd stores the names of an OCI archive unchanged, and finds the images of pods only by
// their full names: app:1 in a pod means docker.io/library/app:1. Therefore Import gives each image
// its full name, and rejects a name that no pod can use.

// fullName returns the full name by which containerd finds an image: with a registry, and with a
// tag or a digest. The full name is derived as in docker and containerd
// (github.com/distribution/reference). If the name contains a digest, this digest must equal
// `target`.
func fullName(name, target string) (string, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", err
	}
	if digested, ok := named.(reference.Digested); ok && digested.Digest().String() != target {
		return "", fmt.Errorf("it is %s", target)
	}
	return named.String(), nil
}

// imagesOf returns the records without the names that are made of digests (isDigestName).
func imagesOf(some []*imagesapi.Image) (named []*imagesapi.Image) {
	for _, i := range some {
		if !isDigestName(i.Name) {
			named = append(named, i)
		}
	}
	return named
}

// finish verifies the names and images of an import, and gives the images their full names. If
// verify fails, finish undoes the whole import.
func (s *Store) finish(ctx context.Context, before, brought []*imagesapi.Image, reserved []string) ([]*imagesapi.Image, error) {
	full, err := s.verify(ctx, brought, reserved)
	if err == nil {
		return s.rename(ctx, brought, full)
	}
	return nil, errors.Join(fmt.Errorf("image import: %w; nothing was imported", err), s.revert(ctx, before, brought))
}

// verify returns the full name for each name. It returns an error if a name is invalid or reserved,
// or if this machine cannot use a target.
func (s *Store) verify(ctx context.Context, brought []*imagesapi.Image, reserved []string) (map[string]string, error) {
	full, targets, usable := map[string]string{}, map[string]string{}, map[string]bool{}
	for _, i := range imagesOf(brought) {
		target := i.Target.GetDigest()
		name, err := fullName(i.Name, target)
		if err != nil {
			return nil, fmt.Errorf("the archive has an image with the name %s, which is invalid in a pod: %w; save it under a name like registry.example.com/app:1",
				printed(strings.TrimPrefix(i.Name, tagged+":")), err)
		}
		if slices.Contains(reserved, name) {
			return nil, fmt.Errorf("the archive has an image with the name %s, which belongs to the system; save it under another name", name)
		}
		if other := targets[name]; other != "" && other != target {
			return nil, fmt.Errorf("the archive has two images with the same full name %s; save one of them under another name", name)
		}
		full[i.Name], targets[name] = name, target
		if usable[target] {
			continue
		}
		if err := s.usable(ctx, i); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		usable[target] = true
	}
	return full, nil
}

// usable returns an error if this machine cannot use an image or an artifact. For an image that was
// deleted meanwhile, it returns nil.
func (s *Store) usable(ctx context.Context, i *imagesapi.Image) error {
	w := walk{read: s.texts(ctx), configs: true}
	found, err := w.choose(ocispec.Descriptor{Digest: digest.Digest(i.Target.GetDigest())}, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if there, asked := s.Has(ctx, i.Name); asked == nil && !there {
			return nil
		}
		return fmt.Errorf("a part of it is not in the archive; save the whole image for linux/%s: %w", architecture, err)
	}
	if err != nil || found != nil {
		return err
	}
	is := "for no platform that it names"
	if len(w.others) > 0 {
		is = "for " + strings.Join(w.others, ", ")
	}
	return fmt.Errorf("is %s, and this machine is linux/%s; build or save it for that platform", is, architecture)
}

// rename gives images their full names, and returns the renamed images.
func (s *Store) rename(ctx context.Context, brought []*imagesapi.Image, full map[string]string) ([]*imagesapi.Image, error) {
	var named []*imagesapi.Image
	done := map[string]bool{}
	for _, i := range brought {
		name := full[i.Name]
		if name == "" || name == i.Name {
			named = append(named, i)
			continue
		}
		renamed := &imagesapi.Image{Name: name, Target: i.Target, Labels: i.Labels}
		if err := s.record(ctx, renamed); err != nil {
			return nil, fmt.Errorf("image import: %s: cannot rename to %s: %w", i.Name, name, err)
		}
		if err := s.remove(ctx, i); err != nil {
			return nil, err
		}
		named = append(named, renamed)
	}
	unique := named[:0]
	// Two names in the archive, such as app:1 and docker.io/library/app:1, can have the same full
	// name.
	for _, i := range named {
		if !done[i.Name] {
			unique, done[i.Name] = append(unique, i), true
		}
	}
	return unique, nil
}

// record creates or updates the record of an image.
func (s *Store) record(ctx context.Context, i *imagesapi.Image) error {
	images := imagesapi.NewImagesClient(s.conn)
	_, err := images.Create(ctx, &imagesapi.CreateImageRequest{Image: i})
	if status.Code(err) == codes.AlreadyExists {
		_, err = images.Update(ctx, &imagesapi.UpdateImageRequest{Image: i, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"target", "labels"}}})
	}
	return err
}

// revert undoes an import: the previous names get their previous targets, and the new names are
// deleted.
func (s *Store) revert(ctx context.Context, before, brought []*imagesapi.Image) error {
	was := map[string]*imagesapi.Image{}
	for _, i := range before {
		was[i.Name] = i
	}
	var failed error
	for _, i := range brought {
		var err error
		if old := was[i.Name]; old != nil {
			err = s.record(ctx, old)
		} else {
			err = s.remove(ctx, i)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}
