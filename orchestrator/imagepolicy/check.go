package imagepolicy

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature"
)

const (
	// checkTimeout bounds the check of an image. The kubelet waits two minutes for a call.
	checkTimeout = 90 * time.Second
	// fetchTimeout bounds the pull of the signatures behind a name.
	fetchTimeout = 20 * time.Second
	// maxReasons is the maximum number of reasons in an error.
	maxReasons = 4
)

// store is containerd's image store, as far as a check needs it. pkg/imagestore implements it.
type store interface {
	Subjects(ctx context.Context, id, repository string) ([]imagestore.Subject, error)
	Signatures(ctx context.Context, fetched bool, name string) (string, error)
	Document(ctx context.Context, fetched bool, digest string, limit int64) ([]byte, error)
	FetchSignatures(ctx context.Context, name, image string) error
	PinSignatures(ctx context.Context, name, image string) error
}

// checker decides which images may run.
type checker struct {
	rules []config.ImageRule
	store store
	pause string // name of the pause image of the system
}

// rule is the rule for an image, and its path in the configuration.
type rule struct {
	config.ImageRule
	at         string
	repository string // of the image
}

// fullName returns the name of an image with its registry, and a tag or a digest, as containerd
// completes it.
func fullName(name string) (string, error) {
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("image %.300q: not the name of an image: %w", name, err)
	}
	return named.String(), nil
}

// ruleFor returns the rule for the full name of an image. If no rule matches the name, the error
// says so.
func (c *checker) ruleFor(name string) (rule, error) {
	repository := repositoryOf(name)
	for i, r := range c.rules {
		if slices.ContainsFunc(r.Images, func(p config.RepositoryPattern) bool { return p.Matches(repository) }) {
			return rule{r, fmt.Sprintf("Machine.spec.node.imagePolicy[%d]", i), repository}, nil
		}
	}
	return rule{}, fmt.Errorf("image %s: no rule of Machine.spec.node.imagePolicy matches %s; add a rule with its keys, or with unsigned: true", name, repository)
}

// repositoryOf returns the full name of a repository without tag and digest; a text that is no name
// is returned unchanged.
func repositoryOf(name string) string {
	if named, err := reference.ParseNormalizedNamed(name); err == nil {
		return named.Name() // index.docker.io/library/nginx:1 is docker.io/library/nginx
	}
	return name
}

// pulled returns the rule for a full name before a pull. It rejects the name of the pause image,
// because a pull would replace the image from which every sandbox starts.
func (c *checker) pulled(name string) (rule, error) {
	if name == c.pause {
		return rule{}, fmt.Errorf("image %s: the name belongs to the system; use another name", name)
	}
	return c.ruleFor(name)
}

// check returns why an image must not run, or nil if it may run. name is its full name in the pod,
// and id the digest of its configuration.
func (c *checker) check(ctx context.Context, name, id string) error {
	r, err := c.ruleFor(name)
	if err != nil {
		return err
	}
	return c.signed(ctx, r, name, id)
}

// signed checks the signatures of an image: first those in the store of the machine, which need no
// network, then those of the registry.
func (c *checker) signed(ctx context.Context, r rule, name, id string) error {
	if r.Unsigned {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	subjects, err := c.store.Subjects(ctx, id, r.repository)
	if err != nil {
		return fmt.Errorf("image %s: cannot check its signatures: %w; pull or import the image again", name, err)
	}
	s := search{checker: c, rule: r, subjects: subjects}
	for _, k := range r.Keys {
		s.keys = append(s.keys, k.Public())
	}
	for _, from := range []func(context.Context, string, imagestore.Subject) bool{s.fetched, s.imported, s.fetch} {
		for _, subject := range subjects {
			for _, suffix := range []string{".sig", ""} {
				if from(ctx, r.repository+":"+strings.ReplaceAll(subject.Digest, ":", "-")+suffix, subject) {
					return nil
				}
			}
		}
	}
	if len(s.reasons) == 0 {
		s.reasons = []string{"neither this machine nor the registry has one"}
	}
	if n := len(s.reasons); n > maxReasons {
		s.reasons = append(s.reasons[:maxReasons], fmt.Sprintf("%d more", n-maxReasons))
	}
	return fmt.Errorf("image %s (%s): %s requires a signature: %s; sign the image with a key of the rule (`cosign sign --key`), import its signatures with it, or change the rule",
		name, subjects[0].Digest, r.at, strings.Join(s.reasons, "; "))
}

// search is the search for a signature of an image.
type search struct {
	*checker
	rule     rule
	keys     []crypto.PublicKey
	subjects []imagestore.Subject
	reasons  []string
}

// addReason adds a reason, unless the list contains it.
func (s *search) addReason(reason string) {
	if !slices.Contains(s.reasons, reason) {
		s.reasons = append(s.reasons, reason)
	}
}

// fetched reports whether signatures that the machine has fetched earlier cover the image.
func (s *search) fetched(ctx context.Context, name string, _ imagestore.Subject) bool {
	return s.accepts(ctx, true, name)
}

// imported reports whether imported signatures cover the image. It pins the signatures that do,
// because the kubelet could otherwise delete them before the image.
func (s *search) imported(ctx context.Context, name string, subject imagestore.Subject) bool {
	if !s.accepts(ctx, false, name) {
		return false
	}
	err := s.store.PinSignatures(ctx, name, subject.Target)
	if err != nil {
		s.addReason(err.Error())
	}
	return err == nil
}

// fetch reports whether the signatures of the registry cover the image.
func (s *search) fetch(ctx context.Context, name string, subject imagestore.Subject) bool {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	switch err := s.store.FetchSignatures(ctx, name, subject.Target); {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		s.addReason(err.Error())
		return false
	}
	return s.accepts(ctx, true, name)
}

// accepts reports whether a signature with the given name in the store covers the image.
func (s *search) accepts(ctx context.Context, fetched bool, name string) bool {
	target, err := s.store.Signatures(ctx, fetched, name)
	var all []imagesignature.Signature
	if err == nil {
		all, err = imagesignature.Read(target, func(digest string, limit int64) ([]byte, error) {
			return s.store.Document(ctx, fetched, digest, limit)
		})
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		s.addReason(name + ": " + err.Error())
		return false
	}
	for _, signature := range all {
		if err := s.covers(signature); err == nil {
			return true
		} else {
			s.addReason(name + ": " + err.Error())
		}
	}
	return false
}

// covers returns why a signature does not cover the image; nil if it does.
func (s *search) covers(signature imagesignature.Signature) error {
	claim, err := signature.Verify(s.keys)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(s.subjects, func(o imagestore.Subject) bool { return o.Digest == claim.Digest }) {
		return fmt.Errorf("a signature is for another image, %s", claim.Digest)
	}
	patterns := s.rule.SignedAs
	if len(patterns) == 0 {
		patterns = []config.RepositoryPattern{config.RepositoryPattern(s.rule.repository)}
	}
	repository := repositoryOf(claim.Repository)
	if slices.ContainsFunc(patterns, func(p config.RepositoryPattern) bool { return p.Matches(repository) }) {
		return nil
	}
	if repository == "" {
		return fmt.Errorf(`a signature names no repository; signedAs: ["*"] in %s accepts it`, s.rule.at)
	}
	return fmt.Errorf("a signature is for the repository %.255q, and signedAs of %s does not accept it", repository, s.rule.at)
}
