// Package s3 puts objects into a bucket of a store that speaks the protocol of Amazon S3. It owns
// one request: PUT of an object whose length and digest are known, with the bucket in the path and
// signed (AWS Signature Version 4). It lists, reads and deletes nothing, tries nothing twice, and
// knows no other service: whoever holds its credentials needs the right s3:PutObject and no more.
package s3

import (
	"cmp"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
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

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Bucket is where objects are put, and as whom.
type Bucket struct {
	Endpoint  string // https://host:port
	Region    string
	Name      string
	AccessKey string
	SecretKey string
	// PEM: who vouches for the store, beside the system's own authorities; may be empty
	CA []byte
}

// MaxSize is the largest object that a store takes in one request, in bytes.
const MaxSize = 5 << 30

const (
	// answerTime is how long the store may take to answer what it has, and to let a connection in.
	answerTime = time.Minute
	// stallTime is how long it may take nothing of an object.
	stallTime = time.Minute
	// refusalTime is how long it is waited for a refusal before the object is sent.
	refusalTime = 5 * time.Second
	// maxAnswer is the most that is read of an answer, in bytes.
	maxAnswer = 16 << 10
)

// Put makes an object of so many bytes, in the place of one that has its key, and returns when the
// store has it. The key is a path of letters, digits, ".", "_" and "-". body is read twice: for its
// digest, and to be sent. An error says what the store said, and no credentials.
func (b Bucket) Put(ctx context.Context, key string, body io.ReaderAt, size int64) error {
	if err := b.put(ctx, key, body, size); err != nil {
		return fmt.Errorf("%s/%s: cannot put %s: %s", b.Endpoint, b.Name, key, b.without(err.Error()))
	}
	return nil
}

// without is a text of somebody else's without the access key, which stores like to repeat.
func (b Bucket) without(text string) string {
	return strings.ReplaceAll(text, cmp.Or(b.AccessKey, "\x00"), "…")
}

func (b Bucket) put(ctx context.Context, key string, body io.ReaderAt, size int64) error {
	if size <= 0 { // a request of no bytes says no length
		return errors.New("it is empty")
	}
	if size > MaxSize {
		return fmt.Errorf("it has %d MiB, and a store takes %d in one piece", size>>20, int64(MaxSize)>>20)
	}
	client, err := b.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	// A bucket that locks its objects takes none without this header. What is relied on is the
	// SHA-256, which is signed.
	sum, check := sha256.New(), md5.New()
	if n, err := io.Copy(io.MultiWriter(sum, check), io.NewSectionReader(body, 0, size)); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	} else if n != size {
		return fmt.Errorf("it has %d bytes, and not %d", n, size)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sending := watch(io.NewSectionReader(body, 0, size), func() { cancel(fmt.Errorf("the store has taken nothing of it for %v", stallTime)) })
	defer sending.Close()
	// the signer takes that port off, and brackets with it
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, strings.TrimSuffix(b.Endpoint, ":443")+"/"+b.Name+"/"+key, sending)
	if err != nil {
		return err
	}
	request.ContentLength = size
	digest := hex.EncodeToString(sum.Sum(nil))
	request.Header.Set("Content-Md5", base64.StdEncoding.EncodeToString(check.Sum(nil)))
	request.Header.Set("Content-Type", "application/octet-stream")
	request.Header.Set("X-Amz-Content-Sha256", digest)
	request.Header.Set("Expect", "100-continue") // who is refused has not sent gigabytes
	request.Header.Set("User-Agent", "orlop")
	// S3 signs paths as they are
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
		return errors.Unwrap(err) // without the URL, which is told
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 == 2 {
		return nil
	}
	defer time.AfterFunc(answerTime, func() { cancel(errors.New("the store does not end its answer")) }).Stop()
	return refusal(answer)
}

// refusal is why the store did not take an object.
func refusal(answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxAnswer)) // what has come of it
	var said struct{ Code, Message string }
	if xml.Unmarshal(text, &said) != nil || said.Code == "" {
		return fmt.Errorf("the store answers %s", sanitize.ASCII(answer.Status, 100))
	}
	return fmt.Errorf("the store answers %s: %s (HTTP %d)", sanitize.ASCII(said.Code, 100), sanitize.ASCII(said.Message, 400), answer.StatusCode)
}

// client goes where it is told and nowhere else.
func (b Bucket) client() (*http.Client, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if len(b.CA) > 0 && !pool.AppendCertsFromPEM(b.CA) {
		return nil, errors.New("there is no certificate in the CA that is given")
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: answerTime}).DialContext, TLSHandshakeTimeout: answerTime,
			TLSClientConfig:       &tls.Config{RootCAs: pool},
			ResponseHeaderTimeout: answerTime, ExpectContinueTimeout: refusalTime,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// watched is a body that tells when nobody has read on for a while, from its first byte to its
// last.
type watched struct {
	io.Reader
	late *time.Timer
}

func watch(from io.Reader, late func()) *watched {
	t := time.AfterFunc(stallTime, late)
	t.Stop()
	return &watched{from, t}
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if err != nil {
		w.late.Stop()
	} else {
		w.late.Reset(stallTime)
	}
	return n, err
}

func (w *watched) Close() error {
	w.late.Stop()
	return nil
}
