package mirror

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/orlop-os/orlop/pkg/sanitize"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// A portal, a web server or a misconfigured proxy may answer a pull with status 200, too.
// containerd would take the answer for the image, fail, and try no other registry. So the mirror
// checks an answer before it forwards the first byte. It checks a manifest completely, and a small
// blob by its digest, because pages and error messages are small. It forwards a large blob at once,
// and containerd verifies the blob.

// manifestTypes are the media types of manifests that containerd can pull.
var manifestTypes = map[string]bool{
	ocispec.MediaTypeImageManifest: true, ocispec.MediaTypeImageIndex: true,
	"application/vnd.docker.distribution.manifest.v2+json":      true,
	"application/vnd.docker.distribution.manifest.list.v2+json": true,
}

const (
	// maxManifest is the maximum size of a manifest, in bytes (distribution-spec v1.1, "Pushing
	// Manifests").
	maxManifest = 4 << 20
	// smallBlob is the size up to which a blob is verified, in bytes.
	smallBlob = 256 << 10
)

// target is the object of a request.
type target struct {
	manifest, blob bool
	digest         digest.Digest // empty: a tag
}

// targetOf returns the target of a request path HOST/v2/REPOSITORY/manifests/… or …/blobs/….
func targetOf(path string) (t target) {
	manifest, blob := strings.LastIndex(path, "/manifests/"), strings.LastIndex(path, "/blobs/")
	t.manifest, t.blob = manifest > blob, blob > manifest
	if d, err := digest.Parse(path[strings.LastIndex(path, "/")+1:]); err == nil {
		t.digest = d
	}
	return t
}

// checkAnswer rejects an answer with status 2xx that does not contain the requested object. If it
// reads the body, it puts an equal body in its place. If the body takes longer than limit, cancel
// ends the request.
func checkAnswer(response *http.Response, t target, limit time.Duration, cancel context.CancelCauseFunc) error {
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil
	}
	// an invalid Content-Type counts as missing
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if mediaType == "text/html" || mediaType == "application/xhtml+xml" {
		return fmt.Errorf("answers with a web page (%s) instead of an image: it is not a registry, or a proxy in front of it requires an action", mediaType)
	}
	whole := response.Request.Method == http.MethodGet && response.StatusCode == http.StatusOK
	if t.manifest {
		return checkManifest(response, t, mediaType, whole, limit, cancel)
	}
	if !t.blob || !whole || t.digest == "" || response.ContentLength > smallBlob {
		return nil
	}
	if err := checkEncoding(response); err != nil {
		return err
	}
	if response.ContentLength < 0 {
		response.Body = &verifiedBody{ReadCloser: response.Body, verifier: t.digest.Verifier()}
		return nil
	}
	content, err := readWithin(response, smallBlob, limit, cancel)
	if err != nil {
		return err
	}
	return checkDigest(t.digest, content)
}

// checkManifest checks an answer with a manifest; if whole is false, only its header.
func checkManifest(response *http.Response, t target, mediaType string, whole bool, limit time.Duration, cancel context.CancelCauseFunc) error {
	if !manifestTypes[mediaType] {
		shown := "without a type"
		if mediaType != "" {
			shown = "of the type " + sanitize.ASCII(mediaType, 100)
		}
		return fmt.Errorf("answers %s instead of a manifest: it is not a registry, or a proxy in front of it requires an action", shown)
	}
	named, err := digest.Parse(response.Header.Get("Docker-Content-Digest"))
	switch {
	case err == nil && t.digest != "" && named.Algorithm() == t.digest.Algorithm() && named != t.digest:
		return fmt.Errorf("answers with the manifest %s instead of %s", named, t.digest)
	case !whole:
		return nil
	case t.digest == "" && err == nil:
		t.digest = named
	}
	if err := checkEncoding(response); err != nil {
		return err
	}
	content, err := readWithin(response, maxManifest, limit, cancel)
	if err != nil {
		return err
	}
	if t.digest != "" {
		if err := checkDigest(t.digest, content); err != nil {
			return err
		}
	}
	return checkContent(content, mediaType)
}

// checkEncoding rejects a content with an encoding, such as gzip. The request excludes encodings.
func checkEncoding(response *http.Response) error {
	encoding := response.Header.Get("Content-Encoding")
	if encoding == "" || strings.EqualFold(encoding, "identity") {
		return nil
	}
	return fmt.Errorf("answers with the Content-Encoding %s, although the request asks for identity", sanitize.ASCII(encoding, 100))
}

// checkContent checks that a text is a manifest of a media type.
func checkContent(content []byte, mediaType string) error {
	var m struct {
		SchemaVersion int    `json:"schemaVersion"`
		MediaType     string `json:"mediaType"`
	}
	const version = 2
	switch err := json.Unmarshal(content, &m); {
	case err != nil:
		return errors.New("answers with a text that is not a manifest: it is not JSON")
	case m.SchemaVersion != version:
		return fmt.Errorf("answers with a text that is not a manifest: its schemaVersion is %d, expected %d", m.SchemaVersion, version)
	case m.MediaType != "" && m.MediaType != mediaType:
		return fmt.Errorf("answers with a manifest of the type %s, and calls it %s", sanitize.ASCII(m.MediaType, 100), mediaType)
	}
	return nil
}

// readWithin returns the body of an answer. It fails if the body has more than most bytes, or takes
// longer than limit.
func readWithin(response *http.Response, most int64, limit time.Duration, cancel context.CancelCauseFunc) ([]byte, error) {
	slow := fmt.Errorf("%w completely within %s", errSilent, limit)
	timer := time.AfterFunc(limit, func() { cancel(slow) })
	content, err := io.ReadAll(io.LimitReader(response.Body, most+1))
	switch fired := !timer.Stop(); {
	case err != nil && (fired || errors.Is(err, transfer.ErrSlow)):
		return nil, slow
	case err != nil:
		return nil, fmt.Errorf("breaks its answer off: %w", err)
	case int64(len(content)) > most:
		return nil, fmt.Errorf("answers with more than %d KiB", most>>10)
	}
	body := response.Body
	response.Body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(content), body}
	response.ContentLength = int64(len(content))
	response.Header.Set("Content-Length", strconv.Itoa(len(content)))
	return content, nil
}

func checkDigest(want digest.Digest, content []byte) error {
	if got := want.Algorithm().FromBytes(content); got != want {
		return fmt.Errorf("answers with another content than %s", want)
	}
	return nil
}

// errOther is returned for a blob that does not match its digest.
var errOther = errors.New("answers with another content than requested")

// verifiedBody verifies a blob of unknown size while it is forwarded. If the digest does not match,
// the client gets an error in place of the end of the body, and so rejects the content.
type verifiedBody struct {
	io.ReadCloser
	verifier digest.Verifier
}

// Read implements io.Reader.
func (b *verifiedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, _ = b.verifier.Write(p[:n]) // a hash returns no error
	if errors.Is(err, io.EOF) && !b.verifier.Verified() {
		err = errOther
	}
	return n, err
}
