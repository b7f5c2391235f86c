package s3

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/orchestrator/etcd/s3/s3test"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/egress/egresstest"
)

const accessKey, secretKey = "EXAMPLE-ACCESS-KEY", "example/secret+key"

// serve starts a server with the handler h, and returns a bucket at this server.
func serve(t *testing.T, h http.Handler) Bucket {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return Bucket{Endpoint: server.URL, Region: "eu-central-1", Name: "backups", AccessKey: accessKey, SecretKey: secretKey, CA: string(ca)}
}

func newStore() *s3test.Store {
	return &s3test.Store{Region: "eu-central-1", Bucket: "backups", AccessKey: accessKey, SecretKey: secretKey}
}

// TestPut checks that the store gets the complete object under its key, with a signature that the
// store verifies with its own code.
func TestPut(t *testing.T) {
	store := newStore()
	b := serve(t, store)
	for key, size := range map[string]int{"orlop/prod/m1/20261122T201140Z-1234-3.6.0.db.age": 3<<20 + 17, "a_b-c.d": 1} {
		want := bytes.Repeat([]byte("x"), size)
		if err := b.Put(t.Context(), key, bytes.NewReader(want), int64(size)); err != nil {
			t.Error(err)
		}
		if got, ok := store.Object(key); !ok || !bytes.Equal(got, want) {
			t.Errorf("%s: %t, %d bytes; want %d", key, ok, len(got), size)
		}
	}
	// Put sends only the first 4 bytes of this reader, which replace the object.
	if err := b.Put(t.Context(), "a_b-c.d", strings.NewReader("more than that"), 4); err != nil {
		t.Error(err)
	}
	if got, _ := store.Object("a_b-c.d"); string(got) != "more" {
		t.Errorf("%q", got)
	}
}

// counted counts the bytes read from an object.
type counted struct {
	io.ReaderAt
	bytes atomic.Int64
}

func (c *counted) ReadAt(p []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(p, at)
	c.bytes.Add(int64(n))
	return n, err
}

// TestRefusedBeforeSending checks that, if the store rejects the request, the client reads the
// object only once, to compute the digest, and sends no part of it.
func TestRefusedBeforeSending(t *testing.T) {
	b := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	const size = 1 << 20
	body := &counted{ReaderAt: bytes.NewReader(make([]byte, size))}
	if err := b.Put(t.Context(), "k", body, size); err == nil || !strings.Contains(err.Error(), "403") {
		t.Error(err)
	}
	if got := body.bytes.Load(); got != size {
		t.Errorf("%d bytes were read; want %d, for the digest", got, size)
	}
}

// TestRequest checks that the request has the length and a signed digest, and that the client waits
// for the answer of the store before it sends the object.
func TestRequest(t *testing.T) {
	b := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut || r.URL.Path != "/backups/k" || r.ContentLength != 5 || len(r.TransferEncoding) != 0 {
			t.Errorf("%s %s, %d bytes, %v", r.Method, r.URL, r.ContentLength, r.TransferEncoding)
		}
		// SHA-256 of "hello"
		const hello = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
		if got := r.Header.Get("X-Amz-Content-Sha256"); got != hello {
			t.Errorf("the digest is %s", got)
		}
		if r.Header.Get("Expect") != "100-continue" {
			t.Error("the client does not wait before it sends the object")
		}
	}))
	if err := b.Put(t.Context(), "k", strings.NewReader("hello"), 5); err != nil {
		t.Error(err)
	}
}

// TestRefused checks that each error contains the message of the store, and no credentials.
func TestRefused(t *testing.T) {
	store := newStore()
	good := serve(t, store)
	stolen := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://elsewhere.example/", http.StatusTemporaryRedirect)
	}))
	broken := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "<html>\x1b[31m")
	}))
	changed := func(change func(*Bucket)) Bucket { b := good; change(&b); return b }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
	for name, c := range map[string]struct {
		b    Bucket
		want string
	}{
		"another secret":                   {changed(func(b *Bucket) { b.SecretKey = "example/secret+key " }), "the store answers SignatureDoesNotMatch: the signature is another one (AWS4-HMAC-SHA256 Credential=…/"},
		"another user":                     {changed(func(b *Bucket) { b.AccessKey = "SOMEBODY" }), "SignatureDoesNotMatch: the credential is another one"},
		"another region":                   {changed(func(b *Bucket) { b.Region = "us-east-1" }), "SignatureDoesNotMatch"},
		"another bucket":                   {changed(func(b *Bucket) { b.Name = "other" }), "NoSuchBucket: The specified bucket does not exist (HTTP 404)"},
		"an unknown CA":                    {changed(func(b *Bucket) { b.CA = "" }), "certificate signed by unknown authority"},
		"no certificate":                   {changed(func(b *Bucket) { b.CA = "x" }), "the given CA contains no certificate"},
		"no listener":                      {changed(func(b *Bucket) { b.Endpoint = "https://" + listener.Addr().String() }), "connection refused"},
		"a redirect":                       {stolen, "the store answers 307 Temporary Redirect"},
		"an answer that is not of a store": {broken, "the store answers 502 Bad Gateway"},
	} {
		err := c.b.Put(t.Context(), "k", strings.NewReader("hello"), 5)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), c.b.Endpoint+"/"+c.b.Name+": cannot put k: ") {
			t.Errorf("%s: %v; want %q", name, err, c.want)
			continue
		}
		for _, secret := range []string{accessKey, secretKey} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %v: the error contains %s", name, err, secret)
			}
		}
	}
	if err := good.Put(t.Context(), "k", strings.NewReader("hello"), 6); err == nil || !strings.Contains(err.Error(), "it has 5 bytes, expected 6") {
		t.Errorf("an object that is too short: %v", err)
	}
	if err := good.Put(t.Context(), "k", strings.NewReader(""), 0); err == nil || !strings.Contains(err.Error(), "it is empty") {
		t.Errorf("an empty object: %v", err)
	}
	if err := good.Put(t.Context(), "k", nil, MaxSize+1); err == nil || !strings.Contains(err.Error(), "it has 5120 MiB, and the limit of a store is 5120") {
		t.Errorf("an object that is too large: %v", err)
	}
	if keys := store.Keys(); len(keys) != 0 {
		t.Errorf("objects %q; want none", keys)
	}
}

// TestEnd checks that Put returns when its context ends.
func TestEnd(t *testing.T) {
	came, done := make(chan struct{}), make(chan struct{})
	b := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(came); <-done }))
	t.Cleanup(func() { close(done) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-came; cancel() }()
	if err := b.Put(ctx, "k", strings.NewReader("hello"), 5); err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Error(err)
	}
}

// TestWatch checks that watch calls its function late if no read takes place for some time, but not
// before the first byte or after the last byte.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := false
		w := watch(strings.NewReader("ab"), func() { late = true })
		check := func(event string, want bool) {
			t.Helper()
			synctest.Wait()
			if late != want {
				t.Errorf("%s: the function late was called: %t", event, late)
			}
		}
		time.Sleep(2 * stallTimeout)
		check("before the first byte", false)
		for range 2 {
			if _, err := w.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(stallTimeout - time.Second)
			check("before the timeout", false)
		}
		if _, err := w.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		time.Sleep(2 * stallTimeout)
		check("after the last byte", false)
		w = watch(strings.NewReader("ab"), func() { late = true })
		if _, err := w.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stallTimeout)
		check("after the timeout", true)
	})
}

// TestAuthorities checks that the configured CA is trusted in addition to the system's CAs.
func TestAuthorities(t *testing.T) {
	b := serve(t, http.NotFoundHandler())
	client, err := b.client()
	if err != nil {
		t.Fatal(err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if pool.AppendCertsFromPEM([]byte(b.CA)); !client.Transport.(*http.Transport).TLSClientConfig.RootCAs.Equal(pool) {
		t.Error("the client trusts other CAs than those of the system and the configured one")
	}
}

// TestPutThroughProxy checks that an object is sent through the proxy of the site. Only the CA of
// the site is configured, and no CA of the bucket.
func TestPutThroughProxy(t *testing.T) {
	store := newStore()
	b := serve(t, store)
	address := strings.TrimPrefix(b.Endpoint, "https://")
	p := &egresstest.Proxy{Username: "machines", Password: "word", Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	proxy := httptest.NewServer(p)
	defer proxy.Close()
	b.Endpoint = "https://example.com:443" // a name in the certificate of httptest
	b.Egress, b.CA = egress.Config{Proxy: strings.Replace(proxy.URL, "//", "//machines:word@", 1), CAs: b.CA}, ""
	if err := b.Put(t.Context(), "k", strings.NewReader("hello"), 5); err != nil {
		t.Fatal(err)
	}
	if got, ok := store.Object("k"); !ok || string(got) != "hello" || !slices.Equal(p.Targets(), []string{"example.com:443"}) {
		t.Errorf("%q, %t, through %q", got, ok, p.Targets())
	}
	b.Egress.Proxy = strings.Replace(proxy.URL, "//", "//machines:hunter2@", 1)
	if err := b.Put(t.Context(), "k", strings.NewReader("hello"), 5); err == nil || !strings.Contains(err.Error(), "Proxy Authentication Required") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("with another password: %v", err)
	}
}
