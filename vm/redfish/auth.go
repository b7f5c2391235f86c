package redfish

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	maxSessions = 16
	// sessionTTL is the time without a request after which a session ends.
	sessionTTL = 30 * time.Minute
)

// session is an authenticated client.
type session struct {
	id, token string
	last      time.Time // of the last request
}

// sessions are the sessions of a service.
type sessions struct {
	mu   sync.Mutex
	open []session
}

// begin adds a session. It returns false if there are already maxSessions sessions.
func (s *sessions) begin(now time.Time) (session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	if len(s.open) >= maxSessions {
		return session{}, false
	}
	made := session{id: rand.Text(), token: rand.Text(), last: now}
	s.open = append(s.open, made)
	return made, true
}

// has reports whether a session with the token exists, and extends this session.
func (s *sessions) has(token string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	for i := range s.open {
		if equal(s.open[i].token, token) {
			s.open[i].last = now
			return true
		}
	}
	return false
}

// ids returns the IDs of the sessions.
func (s *sessions) ids(now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	ids := []string{}
	for _, o := range s.open {
		ids = append(ids, o.id)
	}
	return ids
}

// end ends the session with an ID. It returns false if there is no session with this ID.
func (s *sessions) end(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.open)
	s.open = slices.DeleteFunc(s.open, func(o session) bool { return o.id == id })
	return len(s.open) < before
}

// expire removes the sessions without a request for sessionTTL. The caller holds mu.
func (s *sessions) expire(now time.Time) {
	s.open = slices.DeleteFunc(s.open, func(o session) bool { return now.Sub(o.last) >= sessionTTL })
}

// equal reports whether two secrets are equal. Its duration does not depend on the length of their
// common prefix.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// correct reports whether user and password are the credentials of the service. It returns false if
// the service has no password.
func (s *Server) correct(user, password string) bool {
	named := equal(user, s.user)
	return equal(password, s.password) && named && s.password != ""
}

// authenticated reports whether a request has a valid session or the password.
func (s *Server) authenticated(r *http.Request) bool {
	if token := r.Header.Get("X-Auth-Token"); token != "" {
		return s.sessions.has(token, time.Now())
	}
	user, password, found := r.BasicAuth()
	return found && s.correct(user, password)
}
