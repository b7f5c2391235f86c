// Package s3 uploads objects to a bucket of an S3-compatible store. It implements a single request:
// PUT of an object with known length and digest, with a path-style URL and a signature (AWS
// Signature Version 4). It does not list, read, delete or retry. The credentials need only the
// right s3:PutObject.
package s3

import (
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Bucket is an upload target with its credentials.
type Bucket struct {
	Endpoint  string // https://host:port
	Region    string
	Name      string
	AccessKey string
	SecretKey string
	// PEM: CAs of the store in addition to the system's CAs; may be empty
	CA     string
	Egress egress.Config // how this machine reaches the store
}

// MaxSize is the maximum size of an object in a single request, in bytes.
const MaxSize = 5 << 30

const (
	// answerTimeout is the timeout for the connection and for the answer.
	answerTimeout = time.Minute
	// stallTimeout is the timeout for progress during the upload.
	stallTimeout = time.Minute
	// refusalTimeout is the wait for an early rejection before the object is sent.
	refusalTimeout = 5 * time.Second
	// maxAnswer is the size of the part of an answer that is read, in bytes.
	maxAnswer = 16 << 10
)

// Put uploads an object of size bytes and returns when the store has it. It replaces an object with
// the same key. The key is a path of letters, digits, ".", "_" and "-". Put reads body twice: for
// its digest, and for the upload. An error contains the message of the store, and no credentials.
func (b Bucket) Put(ctx context.Context, key string, body io.ReaderAt, size int64) error {
	if err := b.put(ctx, key, body, size); err != nil {
		return fmt.Errorf("%s/%s: cannot put %s: %s", b.Endpoint, b.Name, key, b.without(err.Error()))
	}
	return nil
}

// The method without removes the access key from a message of the store, because stores tend to
// repeat the key.
func (b Bucket) without(text string) string {
	return strings.ReplaceAll(text, cmp.Or(b.AccessKey, "\x00"), "…")
}

func (b Bucket) put(ctx context.Context, key string, body io.ReaderAt, size int64) error {
	if size <= 0 { // a request without a body has no Content-Length
		return errors.New("it is empty")
	}
	if size > MaxSize {
		return fmt.Errorf("it has %d MiB, and the limit of a store is %d", size>>20, int64(MaxSize)>>20)
	}
	client, err := b.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	// A bucket with Object Lock requires the header Content-MD5. The integrity relies on the
	// SHA-256, which is signed.
	sum, check := sha256.New(), md5.New()
	if n, err := io.Copy(io.MultiWriter(sum, check), io.NewSectionReader(body, 0, size)); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	} else if n != size {
		return fmt.Errorf("it has %d bytes, expected %d", n, size)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sending := watch(io.NewSectionReader(body, 0, size), func() { cancel(fmt.Errorf("the store has accepted no data for %v", stallTimeout)) })
	defer sending.Close()
	// with the port, the signer would also remove the brackets of an IPv6 address
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, strings.TrimSuffix(b.Endpoint, ":443")+"/"+b.Name+"/"+key, sending)
	if err != nil {
		return err
	}
	request.ContentLength = size
	digest := hex.EncodeToString(sum.Sum(nil))
	request.Header.Set("Content-Md5", base64.StdEncoding.EncodeToString(check.Sum(nil)))
	request.Header.Set("Content-Type", "application/octet-stream")
	request.Header.Set("X-Amz-Content-Sha256", digest)
	request.Header.Set("Expect", "100-continue") // so a rejected client sends no gigabytes
	request.Header.Set("User-Agent", "orlop")
	// S3 signs unescaped paths
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	as := aws.Credentials{AccessKeyID: b.AccessKey, SecretAccessKey: b.SecretKey}
	if err := signer.SignHTTP(ctx, as, request, digest, "s3", b.Region, time.Now()); err != nil {
		return fmt.Errorf("it cannot be signed: %w", err)
	}
	answer, err := client.Do(request)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	if err != nil {
		return errors.Unwrap(err) // without the URL, which Put adds
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 == 2 {
		return nil
	}
	defer time.AfterFunc(answerTimeout, func() { cancel(errors.New("the answer of the store is incomplete")) }).Stop()
	return refusal(answer)
}

// refusal returns the error for a rejected object.
func refusal(answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // the received part
	var said struct{ Code, Message string }
	if xml.Unmarshal(text, &said) != nil || said.Code == "" {
		return fmt.Errorf("the store answers %s", sanitize.ASCII(answer.Status, 100))
	}
	return fmt.Errorf("the store answers %s: %s (HTTP %d)", sanitize.ASCII(said.Code, 100), sanitize.ASCII(said.Message, 400), answer.StatusCode)
}

// client returns an HTTP client that follows no redirects.
func (b Bucket) client() (*http.Client, error) {
	roots, err := b.Egress.Roots(b.CA, true)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: answerTimeout}).DialContext, TLSHandshakeTimeout: answerTimeout,
		ResponseHeaderTimeout: answerTimeout, ExpectContinueTimeout: refusalTimeout,
	}
	if err := b.Egress.Complete(transport, roots); err != nil {
		return nil, err
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// watched is a body that calls late if no read takes place for some time. The time begins with the
// first byte and ends with the last.
type watched struct {
	io.Reader
	late *time.Timer
}

func watch(from io.Reader, late func()) *watched {
	t := time.AfterFunc(stallTimeout, late)
	t.Stop()
	return &watched{from, t}
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil {
		w.late.Stop()
	} else {
		w.late.Reset(stallTimeout)
	}
	return n, err
}

func (w *watched) Close() error {
	w.late.Stop()
	return nil
}
