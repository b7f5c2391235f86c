package imagepolicy

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/imagestore"
	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature"
	"github.com/orlop-os/orlop/pkg/imagestore/imagesignature/signtest"
)

const (
	repository = "registry.example.com/team/app"
	name       = repository + ":1"
)

var (
	image   = digest.FromString("image").String()
	index   = digest.FromString("index").String()
	another = digest.FromString("another image").String()
	id      = digest.FromString("configuration").String()
)

// must returns the value of a call that cannot fail in a test.
func must[V any](v V, err error) V {
	if err != nil {
		panic(err)
	}
	return v
}

// keyPair is a private key, and its public key in the form of the configuration.
type keyPair struct {
	*ecdsa.PrivateKey
	public config.ImageKey
}

func newKey() (k keyPair) {
	k.PrivateKey = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	text := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: must(x509.MarshalPKIXPublicKey(k.PrivateKey.Public()))})
	if err := k.public.UnmarshalText(text); err != nil {
		panic(err)
	}
	return k
}

// stored is a fake store with the signatures of the machine and those of the registry.
type stored struct {
	signtest.Blobs
	// The maps have digests by name: of signatures that the machine has fetched, of imported
	// signatures, of signatures in the registry, and of the images with pinned signatures.
	here, local, remote, pinned map[string]string
	down                        error // the error of the registry, if it does not answer
	fetched                     int
}

func newStored() *stored {
	return &stored{signtest.Blobs{}, map[string]string{}, map[string]string{}, map[string]string{}, map[string]string{}, nil, 0}
}

func (s *stored) Subjects(_ context.Context, of, _ string) ([]imagestore.Subject, error) {
	if of != id {
		return nil, fmt.Errorf("images: no manifest of %s: %w", of, fs.ErrNotExist)
	}
	return []imagestore.Subject{{Digest: index, Target: index}, {Digest: image, Target: index}}, nil
}

func (s *stored) Signatures(_ context.Context, fetched bool, name string) (string, error) {
	names := s.local
	if fetched {
		names = s.here
	}
	if d := names[name]; d != "" {
		return d, nil
	}
	return "", fs.ErrNotExist
}

func (s *stored) Document(_ context.Context, _ bool, digest string, limit int64) ([]byte, error) {
	return s.Open(digest, limit)
}

func (s *stored) FetchSignatures(_ context.Context, name, _ string) error {
	s.fetched++
	if s.down != nil {
		return s.down
	}
	if s.remote[name] == "" {
		return fs.ErrNotExist
	}
	s.here[name] = s.remote[name]
	return nil
}

func (s *stored) PinSignatures(_ context.Context, name, image string) error {
	s.pinned[name] = image
	return nil
}

// TestCheck checks which images can run, and the error for each other image.
func TestCheck(t *testing.T) {
	key, other := newKey(), newKey()
	tag, bundle := repository+":"+signtest.Tag(image, ".sig"), repository+":"+signtest.Tag(index, "")
	signed := func(k keyPair, name string, claims ...[]byte) func(*stored) {
		return func(s *stored) { s.remote[name] = must(s.Manifest(k, claims...)).Digest.String() }
	}
	good := signtest.Claim(repository, image)
	rule := config.ImageRule{Images: []config.RepositoryPattern{"registry.example.com/*"}, Keys: []config.ImageKey{key.public}}
	signedAs := func(p ...config.RepositoryPattern) config.ImageRule {
		r := rule
		r.SignedAs = p
		return r
	}
	for _, c := range []struct {
		title string
		rule  config.ImageRule
		setup func(*stored)
		name  string // if empty, the constant name
		want  string // a part of the error; empty if the image can run
	}{
		{title: "signed", setup: signed(key, tag, good)},
		{title: "signed by its index", setup: signed(key, repository+":"+signtest.Tag(index, ".sig"), signtest.Claim(repository, index))},
		{title: "two signatures, the first for another repository", setup: signed(key, tag, signtest.Claim("registry.example.com/other", image), good)},
		{title: "signatures that were imported, without a registry", setup: func(s *stored) {
			signed(key, tag, good)(s)
			s.local, s.remote, s.down = s.remote, nil, errors.New("the registry does not answer")
		}},
		{title: "new signatures replace old ones", setup: func(s *stored) {
			signed(other, tag, good)(s)
			s.here[tag] = s.remote[tag]
			signed(key, tag, good)(s)
		}},
		{title: "for another repository that the rule accepts", rule: signedAs("build.example.com/*"), setup: signed(key, tag, signtest.Claim("build.example.com/app:1", image))},
		{title: "a bundle that the rule accepts", rule: signedAs("*"), setup: func(s *stored) {
			s.remote[bundle] = must(s.Referrers(key, index, signtest.Statement(index))).Digest.String()
		}},
		{title: "without a signature, which the rule accepts", rule: config.ImageRule{Images: rule.Images, Unsigned: true}, setup: func(s *stored) { s.down = errors.New("not asked") }},

		{title: "unsigned", setup: func(*stored) {}, want: "image registry.example.com/team/app:1 (" + index + "): Machine.spec.node.imagePolicy[0] requires a signature: neither this machine nor the registry has one; sign the image with a key of the rule (`cosign sign --key`), import its signatures with it, or change the rule"},
		{title: "by another key", setup: signed(other, tag, good), want: tag + ": none of the keys made it"},
		{title: "for another image", setup: signed(key, tag, signtest.Claim(repository, another)), want: "a signature is for another image, " + another},
		{title: "for another repository", setup: signed(key, tag, signtest.Claim("registry.example.com/team/other", image)), want: `a signature is for the repository "registry.example.com/team/other", and signedAs of Machine.spec.node.imagePolicy[0] does not accept it`},
		{title: "for no repository", setup: signed(key, tag, signtest.Claim("", image)), want: `a signature names no repository; signedAs: ["*"] in Machine.spec.node.imagePolicy[0] accepts it`},
		{title: "a bundle", setup: func(s *stored) {
			s.remote[bundle] = must(s.Referrers(key, index, signtest.Statement(index))).Digest.String()
		}, want: "a signature names no repository"},
		{title: "too large", setup: signed(key, tag, append(good, strings.Repeat(" ", imagesignature.MaxDocument)...)), want: "has more than 131072 bytes"},
		{title: "a manifest that is too large", setup: func(s *stored) {
			s.remote[tag] = s.Put("", []byte(strings.Repeat(" ", imagesignature.MaxManifest+1))).Digest.String()
		}, want: "has more than 262144 bytes"},
		{title: "no registry", setup: func(s *stored) { s.down = errors.New("the registry does not answer") }, want: "requires a signature: the registry does not answer; sign"},
		{title: "no rule", name: "docker.io/library/nginx:1", setup: func(*stored) {}, want: "image docker.io/library/nginx:1: no rule of Machine.spec.node.imagePolicy matches docker.io/library/nginx; add a rule with its keys, or with unsigned: true"},
		{title: "many bad signatures", setup: func(s *stored) {
			var claims [][]byte
			for i := range 9 {
				claims = append(claims, signtest.Claim(repository, digest.FromString(fmt.Sprint(i)).String()))
			}
			signed(key, tag, claims...)(s)
		}, want: "; 5 more; sign"},
	} {
		s := newStored()
		c.setup(s)
		if c.rule.Images == nil {
			c.rule = rule
		}
		if c.name == "" {
			c.name = name
		}
		err := (&checker{rules: []config.ImageRule{c.rule}, store: s}).check(t.Context(), c.name, id)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.title, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v; want %s", c.title, err, c.want)
		case c.want == "" && len(s.pinned) != len(s.local):
			t.Errorf("%s: %d pinned names, %d imported", c.title, len(s.pinned), len(s.local))
		}
	}
}

// TestWithoutNetwork checks that an image that has run once starts again without a request to its
// registry.
func TestWithoutNetwork(t *testing.T) {
	key := newKey()
	s := newStored()
	tag := repository + ":" + signtest.Tag(image, ".sig")
	s.remote[tag] = must(s.Manifest(key, signtest.Claim(repository, image))).Digest.String()
	c := &checker{rules: []config.ImageRule{{Images: []config.RepositoryPattern{"*"}, Keys: []config.ImageKey{key.public}}}, store: s}
	if err := c.check(t.Context(), name, id); err != nil {
		t.Fatal(err)
	}
	fetched := s.fetched
	if err := c.check(t.Context(), name, id); err != nil || s.fetched != fetched {
		t.Errorf("second start: %v, with %d requests to the registry", err, s.fetched-fetched)
	}
	if err := c.check(t.Context(), name, another); err == nil || !strings.Contains(err.Error(), "cannot check its signatures") {
		t.Errorf("an image that the machine does not have: %v", err)
	}
}

// TestFirstRule checks that the first rule that matches a name applies.
func TestFirstRule(t *testing.T) {
	c := &checker{pause: "orlop.dev/pause:1", rules: []config.ImageRule{
		{Images: []config.RepositoryPattern{"docker.io/library/nginx"}}, {Images: []config.RepositoryPattern{"docker.io/*", "registry.example.com:5000/a/*"}}, {Images: []config.RepositoryPattern{"orlop.dev/*"}},
	}}
	for name, want := range map[string]string{
		"nginx": "[0]", "docker.io/nginx:1": "[0]", "index.docker.io/library/nginx": "[0]", "library/redis": "[1]", "registry.example.com:5000/a/b/c@" + image: "[1]",
		"registry.example.com:5000/ab/c": "no rule", "registry.example.com/a/b": "no rule", "docker.io.example.com/a": "no rule",
		"": "not the name of an image", "a b": "not the name of an image", strings.Repeat("a", 64): "not the name of an image", "orlop.dev/pause:1": "belongs to the system", "orlop.dev/pause:2": "[2]",
	} {
		full, err := fullName(name)
		r := rule{}
		if err == nil {
			r, err = c.pulled(full)
		}
		if got := r.at + fmt.Sprint(err); !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}
