package kubelet

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"testing"
)

// answers is a transport that answers with a status over a TLS connection to a server of the given
// name.
type answers struct {
	status int
	name   string
}

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	cert := &x509.Certificate{Subject: pkix.Name{CommonName: a.name}}
	return &http.Response{StatusCode: a.status, TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}}, nil
}

// TestAnswerListener checks that neither an error of an API server nor an answer of the offline API
// server counts as an answer.
func TestAnswerListener(t *testing.T) {
	for _, c := range []struct {
		answers
		want bool
	}{
		{answers{http.StatusOK, "kube-apiserver"}, true},
		{answers{http.StatusServiceUnavailable, "kube-apiserver"}, false},
		{answers{http.StatusOK, "orlop:offline-api"}, false},
	} {
		first := false
		l := answerListener{c.answers, func() { first = true }}
		if _, err := l.RoundTrip(&http.Request{}); err != nil {
			t.Fatal(err)
		}
		if first != c.want {
			t.Errorf("%+v: %t", c.answers, first)
		}
	}
}

// TestForward checks that all values pass in order, and that told closes only after the first
// value since the API server's first answer has passed.
func TestForward(t *testing.T) {
	to, from, told := make(chan int, 3), make(chan struct{}), make(chan struct{})
	in := forward(t.Context(), to, from, told)
	in <- 1
	in <- 2 // the first value has passed now
	select {
	case <-told:
		t.Fatal("told by what stands in")
	default:
	}
	if got := []int{<-to, <-to}; got[0] != 1 || got[1] != 2 {
		t.Fatal(got)
	}
	close(from)
	in <- 3
	<-told
	if got := <-to; got != 3 {
		t.Error(got)
	}
}
