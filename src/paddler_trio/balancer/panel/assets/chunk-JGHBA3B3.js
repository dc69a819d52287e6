import{n as o,q as i}from"./chunk-SXBLEZNA.js";function f(t){let e=null;o(()=>{let n=i.value;if(n?.signed_in!==!0||n.name===null)return;let r=e!==null&&e!==n.name;e=n.name,r&&t()})}export{f as a};
