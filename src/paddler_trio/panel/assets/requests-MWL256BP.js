import{F as e,S as o,y as t}from"./chunk-I7OYIAXH.js";function s(){return t(o,{title:"Requests",children:t(e,{icon:"requests",title:"Nothing to show"})})}export{s as default};
