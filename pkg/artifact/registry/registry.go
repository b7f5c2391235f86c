// Package registry finds a file in an OCI registry and reads it from any offset. The file is the
// only layer of its media type in an artifact. It also fetches the blobs of other artifacts
// (package artifact). It does not push artifacts, and does not read container images.
package registry

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// Source is an artifact in a registry, with the data for the access to the registry.
type Source struct {
	Reference string // "registry.example.com:5000/orlop/qemu:1.2.0", or with "@sha256:…"
	// CA is the CA of the registry, in PEM. Besides this CA, only the CAs of Egress are trusted.
	CA                 []byte
	PlainHTTP          bool
	Username, Password string        // empty: anonymous
	Egress             egress.Config // how the registry is reached
}

// answerTimeout is the timeout of each step of a request until its answer begins.
const answerTimeout = 20 * time.Second

// pace is the slowest accepted pace of answers; tests shorten it.
var pace = transfer.DefaultPace

// maxManifest is the maximum size of a manifest in bytes.
const maxManifest = 4 << 20

// File is a layer of an artifact.
type File struct {
	reference string
	blobs     content.Fetcher
	layer     ocispec.Descriptor
}

// SHA256 returns the digest of the file, in lower-case hexadecimal.
func (f *File) SHA256() string { return f.layer.Digest.Encoded() }

// Size returns the size of the file in bytes.
func (f *File) Size() int64 { return f.layer.Size }

// Find returns the layer with a media type.
func (s Source) Find(ctx context.Context, mediaType string) (*File, error) {
	f, err := s.find(ctx, mediaType)
	if err != nil {
		return nil, fmt.Errorf("registry: %s: %w", s.Reference, err)
	}
	return f, nil
}

// Artifact returns a source of the blobs of the artifact: of its manifest, by digest, and of its
// layers. It sends no request yet.
func (s Source) Artifact() (artifact.Source, error) {
	repository, err := s.repository()
	if err != nil {
		return nil, fmt.Errorf("registry: %s: %w", s.Reference, err)
	}
	return blobSource{s.Reference, repository}, nil
}

// blobSource fetches the blobs of a repository.
type blobSource struct {
	reference  string
	repository *remote.Repository
}

// Open implements artifact.Source.
func (o blobSource) Open(ctx context.Context, b artifact.Blob) (body io.ReadCloser, err error) {
	d := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, b.SHA256), Size: b.Size}
	ctx, cancel := context.WithCancelCause(ctx)
	if b.Size < 0 {
		_, body, err = o.repository.FetchReference(ctx, d.Digest.String())
	} else {
		body, err = o.repository.Blobs().Fetch(ctx, d)
	}
	if errors.Is(err, errdef.ErrNotFound) {
		err = fs.ErrNotExist
	}
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("registry: %s: %w", o.reference, err)
	}
	return transfer.PacedBody(body, pace, cancel), nil
}

// repository returns the repository of the source in the form of the library.
func (s Source) repository() (*remote.Repository, error) {
	repository, err := remote.NewRepository(s.Reference)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: answerTimeout}).DialContext, TLSHandshakeTimeout: answerTimeout, ResponseHeaderTimeout: answerTimeout,
		IdleConnTimeout: answerTimeout,
		// Without this setting, the transport requests gzip. The known size and digest are those of
		// the uncompressed blob.
		DisableCompression: true,
	}
	var roots *x509.CertPool
	if repository.PlainHTTP = s.PlainHTTP; !s.PlainHTTP {
		if roots, err = s.Egress.Roots(string(s.CA), false); err != nil {
			return nil, err
		}
	}
	if err := s.Egress.Complete(transport, roots); err != nil {
		return nil, err
	}
	client := &auth.Client{Client: &http.Client{Transport: transport}, Cache: auth.NewCache()}
	if s.Username != "" {
		if s.PlainHTTP {
			return nil, errors.New("a password is not sent without TLS")
		}
		client.Client.Transport = tlsOnly{transport}
		client.Credential = auth.StaticCredential(repository.Reference.Registry, auth.Credential{Username: s.Username, Password: s.Password})
	}
	repository.Client = client
	return repository, nil
}

// tlsOnly rejects requests without TLS. The registry chooses the URL at which a client exchanges
// the password for a token (WWW-Authenticate, realm). If a registry is behind a misconfigured
// proxy, this URL may begin with http.
type tlsOnly struct{ http.RoundTripper }

func (t tlsOnly) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		return nil, fmt.Errorf("the registry redirects the authentication to %s: a password is not sent without TLS", r.URL.Redacted())
	}
	return t.RoundTripper.RoundTrip(r)
}

func (s Source) find(ctx context.Context, mediaType string) (*File, error) {
	repository, err := s.repository()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	described, body, err := repository.FetchReference(ctx, repository.Reference.ReferenceOrDefault())
	if err != nil {
		cancel(nil)
		return nil, err
	}
	body = transfer.PacedBody(body, pace, cancel)
	defer body.Close()
	if described.Size > maxManifest {
		return nil, fmt.Errorf("a manifest of %d bytes is too large", described.Size)
	}
	text, err := content.ReadAll(body, described)
	if err != nil {
		return nil, err
	}
	layer, err := layerOf(text, mediaType)
	if err != nil {
		return nil, err
	}
	return &File{reference: s.Reference, blobs: repository.Blobs(), layer: layer}, nil
}

// layerOf returns the only layer of a media type in a manifest.
func layerOf(text []byte, mediaType string) (layer ocispec.Descriptor, err error) {
	var manifest struct {
		Layers artifact.Descriptors `json:"layers"`
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		return layer, fmt.Errorf("its manifest cannot be read: %w", err)
	}
	ours := slices.DeleteFunc(manifest.Layers, func(l ocispec.Descriptor) bool { return l.MediaType != mediaType })
	if len(ours) != 1 {
		return layer, fmt.Errorf("it has %d layers of type %s, expected one", len(ours), mediaType)
	}
	if !artifact.IsSHA256(ours[0].Digest) {
		return layer, fmt.Errorf("its layer has the digest %q, expected SHA-256", ours[0].Digest)
	}
	if ours[0].Size <= 0 {
		return layer, fmt.Errorf("its layer has a size of %d bytes", ours[0].Size)
	}
	return ours[0], nil
}

// Reader reads the file from an offset, with a new connection after each interruption
// (transfer.ResumingReader). It fails after the end of ctx.
func (f *File) Reader(ctx context.Context, at int64) io.Reader {
	return transfer.ResumingReader(at, f.layer.Size, func(at int64) (io.ReadCloser, error) {
		body, err := f.open(ctx, at)
		if err != nil {
			return nil, fmt.Errorf("registry: %s: %w", f.reference, err)
		}
		return body, nil
	})
}

// open requests the rest of the file. If the registry has no range requests, open reads and
// discards the bytes before the offset.
func (f *File) open(ctx context.Context, at int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	body, err := f.blobs.Fetch(ctx, f.layer)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	paced := transfer.PacedBody(body, pace, cancel)
	if seeker, ok := body.(io.Seeker); ok {
		_, err = seeker.Seek(at, io.SeekStart)
	} else {
		_, err = io.CopyN(io.Discard, paced, at)
	}
	if err != nil {
		return nil, errors.Join(err, paced.Close())
	}
	return paced, nil
}
