package apid

import (
	"crypto/x509"
	"fmt"
	"sort"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/pki"
)

// roleTable is the least role that each method demands, by full name ("/orlop.v1alpha1.Machine/Version").
type roleTable map[string]api.Role

// newRoleTable reads the roles from the linked descriptors of the API, and adds the two standard services.
func newRoleTable() roleTable {
	table := roleTable{}
	for _, m := range apiMethods() {
		// A method without the option gets ROLE_UNSPECIFIED, which nobody has: it is refused to everyone.
		role, _ := proto.GetExtension(m.Options(), api.E_Role).(api.Role)
		table[fullMethod(m)] = role
	}
	for _, file := range []protoreflect.FileDescriptor{healthpb.File_grpc_health_v1_health_proto, reflectionpb.File_grpc_reflection_v1_reflection_proto} {
		for _, m := range methodsOf(file) {
			table[fullMethod(m)] = api.Role_ROLE_READER
		}
	}
	return table
}

// check tells whether a caller with that role may call the method. The error is one sentence for the caller.
func (t roleTable) check(method string, role api.Role) error {
	least, known := t[method]
	switch {
	case !known:
		return fmt.Errorf("%s: cannot call: this machine knows no such method; compare its version with that of your tool", method)
	case least == api.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("%s: cannot call: the method has no role, so nobody may", method)
	case role == api.Role_ROLE_UNSPECIFIED:
		return fmt.Errorf("%s: cannot call: your certificate names no role; ask for one with O=%s", method, organisation(least))
	case role < least:
		return fmt.Errorf("%s: cannot call: it needs the role %s, your certificate has %s", method, organisation(least), organisation(role))
	}
	return nil
}

// mutates tells whether a method changes something or gives away a secret, which is when it is audited.
func (t roleTable) mutates(method string) bool { return t[method] > api.Role_ROLE_READER }

// Mutates returns what tells whether a method, by its full name, changes something or gives away a secret, so that machined records
// the calls that apid logs.
func Mutates() func(method string) bool { return newRoleTable().mutates }

// roleOf reads a role from a certificate: the highest that its organisations name. Its CA may not be one that can give it.
func roleOf(cert *x509.Certificate) api.Role {
	highest := api.Role_ROLE_UNSPECIFIED
	for _, o := range cert.Subject.Organization {
		for _, role := range []api.Role{api.Role_ROLE_MACHINE, api.Role_ROLE_READER, api.Role_ROLE_OPERATOR, api.Role_ROLE_ADMIN} {
			if o == organisation(role) {
				highest = max(highest, role)
			}
		}
	}
	return highest
}

// organisation is the O of a certificate with that role.
func organisation(role api.Role) string {
	switch role {
	case api.Role_ROLE_MACHINE:
		return pki.RoleMachine
	case api.Role_ROLE_READER:
		return pki.RoleReader
	case api.Role_ROLE_OPERATOR:
		return pki.RoleOperator
	case api.Role_ROLE_ADMIN:
		return pki.RoleAdmin
	}
	return "nobody"
}

func apiMethods() []protoreflect.MethodDescriptor { return methodsOf(api.File_orlop_proto) }

func methodsOf(file protoreflect.FileDescriptor) []protoreflect.MethodDescriptor {
	var methods []protoreflect.MethodDescriptor
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		for j := range service.Methods().Len() {
			methods = append(methods, service.Methods().Get(j))
		}
	}
	return methods
}

func fullMethod(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// services is what reflection lists: the API's services, which apid only passes on, and its own two.
type services struct{}

// GetServiceInfo implements reflection.ServiceInfoProvider; reflection reads the names only.
func (services) GetServiceInfo() map[string]grpc.ServiceInfo {
	info := map[string]grpc.ServiceInfo{}
	for _, name := range serviceNames() {
		info[name] = grpc.ServiceInfo{}
	}
	return info
}

func serviceNames() []string {
	names := []string{healthpb.Health_ServiceDesc.ServiceName, reflectionpb.ServerReflection_ServiceDesc.ServiceName}
	list := api.File_orlop_proto.Services()
	for i := range list.Len() {
		names = append(names, string(list.Get(i).FullName()))
	}
	sort.Strings(names)
	return names
}
