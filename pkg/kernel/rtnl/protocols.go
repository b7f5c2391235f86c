package rtnl

// The protocol numbers with which this system marks its addresses (IFA_PROTO) and routes
// (rtm_protocol). Neither the kernel's rtnetlink.h nor iproute2's rt_protos uses these numbers.
const (
	ProtoMachine  = 79 // addresses and routes of the machine itself
	ProtoPods     = 80 // the network between pods of different machines
	ProtoServices = 81 // the route to Services for processes of the machine
)
