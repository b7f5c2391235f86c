package images

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	containerregistry "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/artifact/artifacttest"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/egress"
)

// importedStore is a containerd with imported artifacts.
type importedStore struct {
	artifacttest.Source
	released []string
	kept     []string // digests that Unpin has retained
}

func (b *importedStore) Release(_ context.Context, digests []string) error {
	b.released = digests
	return nil
}

func (b *importedStore) Unpin(_ context.Context, digests []string, then time.Time) error {
	if time.Since(then) < time.Hour {
		return errors.New("too early")
	}
	b.kept = digests
	return nil
}

// testRegistry serves an artifact with the content text as outside/team/web. It returns the server,
// its address, and the digest of the manifest.
func testRegistry(t *testing.T, text string) (server *httptest.Server, address, sum string) {
	t.Helper()
	server = httptest.NewServer(containerregistry.New())
	t.Cleanup(server.Close)
	address = strings.TrimPrefix(server.URL, "http://")
	repository, err := remote.NewRepository(address + "/outside/team/web")
	if err != nil {
		t.Fatal(err)
	}
	repository.PlainHTTP = true
	shelf := artifacttest.Source{}
	sum = shelf.Put(text)
	for blob, content := range shelf {
		if blob == sum {
			continue
		}
		d := ocispec.Descriptor{MediaType: "application/yaml", Digest: digest.FromBytes(content), Size: int64(len(content))}
		if err := repository.Push(t.Context(), d, bytes.NewReader(content)); err != nil {
			t.Fatal(err)
		}
	}
	manifest := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(shelf[sum]), Size: int64(len(shelf[sum]))}
	if err := repository.Push(t.Context(), manifest, bytes.NewReader(shelf[sum])); err != nil {
		t.Fatal(err)
	}
	return server, address, sum
}

// spec returns the specification of an add-on: the digest sum of its artifact, and the registries
// in which the artifact is searched.
func spec(sum string, registries ...string) config.AddonSpec {
	s := config.AddonSpec{Artifact: config.Artifact{Registry: "registry.example.com", Repository: "team/web", SHA256: sum}}
	for _, r := range registries {
		s.Registries = append(s.Registries, config.AddonRegistry{Address: config.RegistryPath(r), PlainHTTP: true})
	}
	return s
}

// TestArtifactManager checks that an artifact is fetched once: from containerd, or else from the
// first registry that has it. The reason for a missing artifact names the searched places. An
// artifact that the configuration does not name any more is pruned, unless a rollback or revert may
// need it.
func TestArtifactManager(t *testing.T) {
	dead := httptest.NewServer(nil)
	gone := strings.TrimPrefix(dead.URL, "http://")
	dead.Close()
	server, address, remoteSum := testRegistry(t, "a: 1")
	other := httptest.NewServer(containerregistry.New())
	t.Cleanup(other.Close)
	empty := strings.TrimPrefix(other.URL, "http://")
	local := &importedStore{Source: artifacttest.Source{}}
	here, bad := local.Put("b: 1"), local.Put()
	nowhere := strings.Repeat("0", 64)
	k := &artifactManager{egress: func() egress.Config { return egress.Config{} }, store: artifact.Store{Dir: t.TempDir(), Group: os.Getgid()}, local: local, event: func(string, string) {}, up: true}

	var told []Artifacts
	wanted := []config.AddonSpec{spec(remoteSum, gone, empty, address+"/outside"), spec(here), spec(nowhere, gone, empty), spec(bad)}
	found := k.round(t.Context(), wanted, func(a Artifacts) { told = append(told, a) })
	if len(told) != 4 || len(told[0]) != 1 || told[0][here] != "" {
		t.Errorf("published %q; the artifacts of containerd must be published first", told)
	}
	if found[remoteSum] != "" || found[here] != "" || k.store.Verify(remoteSum) != nil || k.store.Verify(here) != nil {
		t.Errorf("found %q", found)
	}
	name := "registry.example.com/team/web@sha256:" + nowhere
	for _, want := range []string{name + ": it was not imported on this machine", "registry " + gone + ": ", "connection refused", "registry " + empty + ": does not have it",
		"import it with `orlopctl image import`"} {
		if !strings.Contains(found[nowhere], want) {
			t.Errorf("the reason of an artifact that no source has is %q, without %q", found[nowhere], want)
		}
	}
	for _, want := range []string{"is unusable: it has 0 layers", "no registry is named (spec.registries)"} {
		if !strings.Contains(found[bad], want) {
			t.Errorf("the reason of an unusable artifact is %q, without %q", found[bad], want)
		}
	}
	if !found.missing() {
		t.Error("missing returns false although two artifacts are missing")
	}

	// The next round publishes the former result first.
	told = nil
	k.round(t.Context(), wanted, func(a Artifacts) { told = append(told, a) })
	if told[0][nowhere] != found[nowhere] || told[0][remoteSum] != "" {
		t.Errorf("the next round first publishes %q", told[0])
	}

	// The fetched artifacts are stored, so their sources are not needed any more.
	server.Close()
	clear(local.Source)
	wanted = wanted[:2]
	k.up = false
	if found := k.round(t.Context(), wanted, func(Artifacts) {}); found.missing() || len(found) != 2 {
		t.Errorf("found %q", found)
	}
	k.up = true
	if err := k.prune(t.Context(), wanted[1:], false); err != nil || !slices.Equal(local.released, []string{"sha256:" + here}) || k.store.Verify(remoteSum) != nil {
		t.Errorf("%v, released in containerd: %q; %v", err, local.released, k.store.Verify(remoteSum))
	}
	if err := k.prune(t.Context(), wanted[1:], true); err != nil || k.store.Verify(here) != nil || !errors.Is(k.store.Verify(remoteSum), fs.ErrNotExist) || !slices.Equal(local.kept, local.released) {
		t.Errorf("%v, left: %v %v", err, k.store.Verify(here), k.store.Verify(remoteSum))
	}
	k.up = false
	if found := k.round(t.Context(), wanted[:1], func(Artifacts) {}); !strings.Contains(found[remoteSum], "containerd, which may have it, does not run yet") {
		t.Errorf("while containerd does not run: %q", found)
	}
}

// TestLyingRegistry checks that a machine gets an artifact from the next registry if the first
// registry sends the manifest or the layers of another artifact.
func TestLyingRegistry(t *testing.T) {
	_, honest, sum := testRegistry(t, "a: 1")
	other, _, otherSum := testRegistry(t, "b: 1")
	asked := 0
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; strings.HasSuffix(r.URL.Path, sum) {
			r.URL.Path = strings.TrimSuffix(r.URL.Path, sum) + otherSum
		}
		other.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(liar.Close)
	k := &artifactManager{egress: func() egress.Config { return egress.Config{} }, store: artifact.Store{Dir: t.TempDir(), Group: os.Getgid()}, local: &importedStore{Source: artifacttest.Source{}}, event: func(string, string) {}, up: true}
	address := strings.TrimPrefix(liar.URL, "http://") + "/outside"
	if found := k.round(t.Context(), []config.AddonSpec{spec(sum, address)}, func(Artifacts) {}); !found.missing() || asked == 0 || k.store.Verify(sum) == nil {
		t.Errorf("from the lying registry alone: %q", found)
	}
	if found := k.round(t.Context(), []config.AddonSpec{spec(sum, address, honest+"/outside")}, func(Artifacts) {}); found.missing() || k.store.Verify(sum) != nil {
		t.Errorf("with another registry: %q", found)
	}
}

// TestWantedArtifacts checks that wantedArtifacts returns each artifact of the configuration once,
// and that the delay between attempts for missing artifacts grows up to a maximum.
func TestWantedArtifacts(t *testing.T) {
	sum := strings.Repeat("a", 64)
	c := &config.Config{Addons: []config.Addon{{Spec: spec(sum)}, {Spec: config.AddonSpec{}}, {Spec: spec(sum)}, {Spec: spec(strings.Repeat("b", 64))}}}
	if got := wantedArtifacts(c); len(got) != 2 || got[0].Artifact.SHA256 != sum {
		t.Errorf("wanted are %+v", got)
	}
	if first, second, last := retryAfter(1), retryAfter(2), retryAfter(1000); first != 5*time.Second || second != 10*time.Second || last != 5*time.Minute {
		t.Errorf("%v, %v, %v", first, second, last)
	}
}
