package imagestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// containerd stores the names of an OCI archive as they are, and finds the images of pods by their
// whole names only: app:1 of a pod is docker.io/library/app:1. So Import gives each image the name
// that a pod's image has, and refuses what no pod could name.

// fullName is the name by which a pod's image is found, as docker and containerd make it of a short
// one (github.com/distribution/reference): with a registry, and with a tag or a digest. A name with
// a digest has to be of what it stands for.
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

// imagesOf leaves out the names that are made of digests: they are containerd's or pin's.
func imagesOf(some []*imagesapi.Image) (named []*imagesapi.Image) {
	for _, i := range some {
		if !ofDigest(i.Name) {
			named = append(named, i)
		}
	}
	return named
}

// settle verifies what an import has brought, and gives it its full names. Where something cannot
// be used, nothing of it stays.
func (s *Store) settle(ctx context.Context, before, brought []*imagesapi.Image) ([]*imagesapi.Image, error) {
	full, err := s.verify(ctx, brought)
	if err == nil {
		return s.rename(ctx, brought, full)
	}
	return nil, errors.Join(fmt.Errorf("image import: %w; nothing was imported", err), s.revert(ctx, before, brought))
}

// verify returns the full names by the names, once all of them are names and stand for something
// that this machine can use.
func (s *Store) verify(ctx context.Context, brought []*imagesapi.Image) (map[string]string, error) {
	full, targets, usable := map[string]string{}, map[string]string{}, map[string]bool{}
	for _, i := range imagesOf(brought) {
		target := i.Target.GetDigest()
		name, err := fullName(i.Name, target)
		if err != nil {
			return nil, fmt.Errorf("the archive names an image %s, which no pod could name: %w; save it under a name, such as registry.example.com/app:1",
				printed(strings.TrimPrefix(i.Name, tagged+":")), err)
		}
		if other := targets[name]; other != "" && other != target {
			return nil, fmt.Errorf("the archive has two images that a pod would name %s; save one of them under another name", name)
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

// usable says why this machine can do nothing with an image or an artefact. What was deleted
// meanwhile is not looked at.
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

// rename gives images their full names, and returns them with those.
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
			return nil, fmt.Errorf("image import: %s is there, but cannot be named %s: %w", i.Name, name, err)
		}
		if err := s.remove(ctx, i); err != nil {
			return nil, err
		}
		named = append(named, renamed)
	}
	unique := named[:0]
	for _, i := range named { // app:1 and docker.io/library/app:1 have become one
		if !done[i.Name] {
			unique, done[i.Name] = append(unique, i), true
		}
	}
	return unique, nil
}

// record writes an image's record, whether there was one of that name or not.
func (s *Store) record(ctx context.Context, i *imagesapi.Image) error {
	images := imagesapi.NewImagesClient(s.conn)
	_, err := images.Create(ctx, &imagesapi.CreateImageRequest{Image: i})
	if status.Code(err) == codes.AlreadyExists {
		_, err = images.Update(ctx, &imagesapi.UpdateImageRequest{Image: i, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"target", "labels"}}})
	}
	return err
}

// revert takes back what an import has brought: the names that were there before stand for what
// they stood for.
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
