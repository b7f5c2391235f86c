package redfish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/strictyaml"
)

const (
	rootPath     = "/redfish/v1"
	sessionsPath = rootPath + "/SessionService/Sessions"
	// maxRequest is the maximum size of the body of a request, in bytes.
	maxRequest = 64 << 10
	// operationTimeout bounds an operation on a system, because a machine is on or off within a
	// minute. requestTimeout bounds a whole request, with its operation and its answer.
	requestTimeout   = 2 * time.Minute
	operationTimeout = time.Minute
)

// Server is a Redfish service.
type Server struct {
	user, password string
	uuid           string
	systems        func() []System
	sessions       sessions
}

// New returns a service for the systems that the function systems returns, in this order. uuid
// identifies the service. user and password are the credentials of its only user. A service with an
// empty password rejects all requests that need authentication.
func New(uuid, user, password string, systems func() []System) *Server {
	return &Server{user: user, password: password, uuid: uuid, systems: systems}
}

// HTTP returns an HTTP server of the service. The caller serves TLS with it.
func (s *Server) HTTP() *http.Server {
	return &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Minute, ReadTimeout: time.Minute,
		WriteTimeout: requestTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
}

// failure is an error with its HTTP status.
type failure struct {
	status int
	text   string
}

func (f failure) Error() string { return f.text }

func fail(status int, format string, values ...any) error {
	return failure{status, fmt.Sprintf(format, values...)}
}

// method handles a request. It returns the value for the body of the answer, which is its JSON
// form. If the value is nil, the answer has no body.
type method func(r *http.Request) (any, error)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	open := func(pattern string, do method) { mux.Handle(pattern, answer(do)) }
	closed := func(pattern string, do method) {
		open(pattern, func(r *http.Request) (any, error) {
			if !s.authenticated(r) {
				return nil, fail(http.StatusUnauthorized, "the request has no valid password and no valid session: send the user and the password of the service")
			}
			return do(r)
		})
	}
	open("GET /redfish", func(*http.Request) (any, error) { return map[string]string{"v1": rootPath + "/"}, nil })
	open("GET "+rootPath, s.root)
	open("GET "+rootPath+"/{$}", s.root)
	mux.HandleFunc("POST "+sessionsPath, s.login)
	closed("GET "+rootPath+"/SessionService", s.sessionService)
	closed("GET "+sessionsPath, s.listSessions)
	closed("DELETE "+sessionsPath+"/{id}", s.logout)
	closed("GET "+rootPath+"/Systems", s.collection("ComputerSystem", "Systems"))
	closed("GET "+rootPath+"/Managers", s.collection("Manager", "Managers"))
	of := func(pattern string, do func(System, *http.Request) (any, error)) {
		closed(pattern, func(r *http.Request) (any, error) {
			system, err := s.system(r.PathValue("name"))
			if err != nil {
				return nil, err
			}
			return do(system, r)
		})
	}
	of("GET "+rootPath+"/Systems/{name}", getSystem)
	of("PATCH "+rootPath+"/Systems/{name}", patchSystem)
	of("POST "+rootPath+"/Systems/{name}/Actions/ComputerSystem.Reset", resetSystem)
	of("GET "+rootPath+"/Managers/{name}", getManager)
	of("GET "+rootPath+"/Managers/{name}/VirtualMedia", listMedia)
	of("GET "+rootPath+"/Managers/{name}/VirtualMedia/Cd", getMedium)
	of("POST "+rootPath+"/Managers/{name}/VirtualMedia/Cd/Actions/VirtualMedia.InsertMedia", insertMedium)
	of("POST "+rootPath+"/Managers/{name}/VirtualMedia/Cd/Actions/VirtualMedia.EjectMedia", ejectMedium)
	closed("/", func(r *http.Request) (any, error) {
		return nil, fail(http.StatusNotFound, "%s %.200q: there is no such resource or method: begin at %s", r.Method, r.URL.Path, rootPath)
	})
	return mux
}

// answer returns an HTTP handler that calls a method.
func answer(do method) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), operationTimeout)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		body, err := do(r)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, body)
	}
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("OData-Version", "4.0")
	w.Header().Set("Cache-Control", "no-cache")
	if body == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body) // a disconnected client needs no answer
}

// writeError writes an error in the form of DSP0266, section 8.6.
func writeError(w http.ResponseWriter, err error) {
	status := http.StatusConflict // an error of the machine
	var f failure
	if errors.As(err, &f) {
		status = f.status
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Basic realm="redfish"`)
	}
	writeJSON(w, status, map[string]any{"error": map[string]any{
		"code": "Base.1.18.GeneralError", "message": err.Error(),
		"@Message.ExtendedInfo": []map[string]string{{"MessageId": "Base.1.18.GeneralError", "Message": err.Error()}},
	}})
}

// read decodes the body of a request. It rejects unknown fields, because a client would expect that
// they have an effect.
func read(r *http.Request, into any) error {
	var body json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return fail(http.StatusBadRequest, "%s %s: the request is not JSON of at most %d bytes: %v", r.Method, r.URL.Path, maxRequest, err)
	}
	if err := strictyaml.Decode(body, into); err != nil {
		return fail(http.StatusBadRequest, "%s %s: cannot read the request: %v", r.Method, r.URL.Path, err)
	}
	return nil
}

// system returns the system with a name, or an error with the status 404.
func (s *Server) system(name string) (System, error) {
	for _, system := range s.systems() {
		if system.Name() == name {
			return system, nil
		}
	}
	return nil, fail(http.StatusNotFound, "system %.80q: there is no such system: %s/Systems lists them", name, rootPath)
}

// login begins a session.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
	var request struct{ UserName, Password string }
	if err := read(r, &request); err != nil {
		writeError(w, err)
		return
	}
	if !s.correct(request.UserName, request.Password) {
		writeError(w, fail(http.StatusUnauthorized, "session: the user or the password is wrong"))
		return
	}
	made, ok := s.sessions.begin(time.Now())
	if !ok {
		writeError(w, fail(http.StatusServiceUnavailable, "session: there are %d sessions, the maximum: end one, or wait %s", maxSessions, sessionTTL))
		return
	}
	w.Header().Set("X-Auth-Token", made.token)
	w.Header().Set("Location", sessionsPath+"/"+made.id)
	writeJSON(w, http.StatusCreated, resource(sessionsPath+"/"+made.id, "#Session.v1_7_0.Session", made.id, "Session", map[string]any{"UserName": s.user}))
}

func (s *Server) logout(r *http.Request) (any, error) {
	if id := r.PathValue("id"); !s.sessions.end(id) {
		return nil, fail(http.StatusNotFound, "session %.80q: there is no such session", id)
	}
	return nil, nil
}

// fileOf returns the path in the URI of a local file, and rejects other URIs.
func fileOf(image string) (string, error) {
	u, err := url.Parse(image)
	if err != nil || u.Scheme != "file" || !slices.Contains([]string{"", "localhost"}, u.Host) || u.Path == "" {
		return "", fail(http.StatusBadRequest, "medium %.200q: cannot insert: the image is not a file of this computer: use file:///PATH", image)
	}
	return u.Path, nil
}
