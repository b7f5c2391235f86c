// Package s3test implements an object store for tests. It accepts PUT requests like Amazon S3. It
// verifies each signature with its own implementation of the documentation (Signature Version 4,
// "Authenticating Requests: Using the Authorization Header"), not with the library that signed the
// request.
package s3test

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Store is a store with a single user. The user can put objects, but not read or list them.
type Store struct {
	Region, Bucket       string
	AccessKey, SecretKey string

	mu      sync.Mutex
	objects map[string][]byte // by key
	failing int
}

// Keys returns the keys of all objects.
func (s *Store) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Object returns the object with a key, and true if the object exists.
func (s *Store) Object(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text, ok := s.objects[key]
	return text, ok
}

// Fail makes the next requests fail; requests is their number.
func (s *Store) Fail(requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = requests
}

// ServeHTTP stores an object, or answers with an error in the form of S3.
func (s *Store) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	fails := s.failing > 0
	if fails {
		s.failing--
	}
	s.mu.Unlock()
	refuse := func(status int, code, format string, args ...any) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		fmt.Fprintf(w, "<?xml version=\"1.0\"?>\n<Error><Code>%s</Code><Message>%s</Message></Error>", code, fmt.Sprintf(format, args...))
	}
	key, inBucket := strings.CutPrefix(r.URL.Path, "/"+s.Bucket+"/")
	switch problem := s.judge(r, time.Now()); {
	case fails:
		refuse(http.StatusServiceUnavailable, "SlowDown", "Please reduce your request rate.")
		return
	case problem != "":
		// like real stores, the message repeats the header
		refuse(http.StatusForbidden, "SignatureDoesNotMatch", "%s (%s)", problem, r.Header.Get("Authorization"))
		return
	case r.Method != http.MethodPut:
		refuse(http.StatusForbidden, "AccessDenied", "Access Denied")
		return
	case !inBucket || key == "":
		refuse(http.StatusNotFound, "NoSuchBucket", "The specified bucket does not exist")
		return
	case r.ContentLength < 0:
		refuse(http.StatusLengthRequired, "MissingContentLength", "You must provide the Content-Length HTTP header.")
		return
	}
	text, err := io.ReadAll(r.Body)
	if err != nil || int64(len(text)) != r.ContentLength {
		return // the client has disconnected
	}
	sum, check := sha256.Sum256(text), md5.Sum(text)
	if hex.EncodeToString(sum[:]) != r.Header.Get("X-Amz-Content-Sha256") {
		refuse(http.StatusBadRequest, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed.")
		return
	}
	// required by a bucket with Object Lock
	if base64.StdEncoding.EncodeToString(check[:]) != r.Header.Get("Content-Md5") {
		refuse(http.StatusBadRequest, "BadDigest", "The Content-MD5 you specified did not match what we received.")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects = map[string][]byte{}
	}
	s.objects[key] = text
}

// skew is the maximum difference between the clocks of client and store.
const skew = 15 * time.Minute

// judge returns the problem of a request's signature, or an empty string.
func (s *Store) judge(r *http.Request, now time.Time) string {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return "there is no signature"
	}
	fields := map[string]string{}
	for field := range strings.SplitSeq(given, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		fields[name] = value
	}
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || now.Sub(at).Abs() > skew {
		return "the date is " + date
	}
	day := date[:8]
	scope := strings.Join([]string{day, s.Region, "s3", "aws4_request"}, "/")
	if fields["Credential"] != s.AccessKey+"/"+scope {
		return "the credential is another one"
	}
	signed := strings.Split(fields["SignedHeaders"], ";")
	for _, must := range []string{"host", "x-amz-content-sha256", "x-amz-date", "content-md5"} {
		if !slices.Contains(signed, must) {
			return must + " is not signed"
		}
	}
	if !slices.IsSorted(signed) {
		return "the headers are not in order"
	}
	canonical := []string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery}
	for _, name := range signed {
		value := r.Header.Get(name)
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		canonical = append(canonical, name+":"+strings.Join(strings.Fields(value), " "))
	}
	canonical = append(canonical, "", fields["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256"))
	hashed := sha256.Sum256([]byte(strings.Join(canonical, "\n")))
	toSign := strings.Join([]string{"AWS4-HMAC-SHA256", date, scope, hex.EncodeToString(hashed[:])}, "\n")
	key := []byte("AWS4" + s.SecretKey)
	for _, part := range []string{day, s.Region, "s3", "aws4_request", toSign} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	if !hmac.Equal([]byte(hex.EncodeToString(key)), []byte(fields["Signature"])) {
		return "the signature is another one"
	}
	return ""
}
